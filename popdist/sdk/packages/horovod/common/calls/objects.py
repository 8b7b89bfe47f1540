"""Broadcasts and gathers of objects that can be pickled, as arrays of their bytes."""

import pickle
from io import BytesIO
from typing import Any

import numpy as np

from popdist.engine.calls.array_rows import Array
from popdist.negotiation.call_requests import Kind

from ..process_sets import ProcessSet, global_process_set
from .library import NUMPY_ARRAYS
from .submission import BASICS, CallArguments, TensorCalls

ARRAY_CALLS = TensorCalls(NUMPY_ARRAYS)


# Any, because objects of all types that can be pickled are taken.
def broadcast_object(
    obj: Any = None,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the object of one rank, on all ranks.

    Args:
        obj: What can be pickled; of other ranks than the root it does not count.
        root_rank: Whose object it is.
        name: By which the ranks' calls are matched.
        process_set: The ranks that take part.
    """
    is_root = BASICS.rank() == root_rank
    data = _pickled(obj) if is_root else np.empty(0, np.uint8)
    length = np.array([len(data)], np.int64)
    names = [name and f"object.{name}.{part}" for part in ("length", "data")]
    ARRAY_CALLS.overwrite([length], root_rank, process_set, names[0])
    if not is_root:
        data = np.empty(length[0], np.uint8)
    ARRAY_CALLS.overwrite([data], root_rank, process_set, names[1])
    return obj if is_root else _unpickled(data)


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Return a list of all ranks' objects, which can be pickled."""
    data = _pickled(obj)
    length = np.array([len(data)], np.int64)
    full = None if name is None else f"object.{name}"
    gather = CallArguments(Kind.ALLGATHER, full, process_set)
    whole, lengths = ARRAY_CALLS.begin(gather, [data, length], now=True).wait()
    return [_unpickled(part) for part in np.split(whole, lengths.cumsum()[:-1])]


def _pickled(obj: Any) -> Array:
    content = BytesIO()
    pickle.dump(obj, content)
    # Without another copy: an optimizer's state may be most of the memory.
    return np.frombuffer(content.getbuffer(), np.uint8)


def _unpickled(data: Array) -> Any:
    # Any: an array is as good as bytes, but not declared so.
    content: Any = data
    return pickle.loads(content)
