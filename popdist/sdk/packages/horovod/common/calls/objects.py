"""Broadcasts and gathers of objects that can be pickled, as arrays of their bytes."""

import pickle
from io import BytesIO
from typing import Any

import numpy as np

from popdist.engine.calls.array_rows import Array

from ..process_sets import ProcessSet, global_process_set
from .library import NUMPY_ARRAYS
from .submission import BASICS, TensorCalls

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
    _overwrite(length, root_rank, names[0], process_set)
    if not is_root:
        data = np.empty(length[0], np.uint8)
    _overwrite(data, root_rank, names[1], process_set)
    return obj if is_root else _unpickled(data)


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Return a list of all ranks' objects, which can be pickled."""
    data = _pickled(obj)
    length = np.array([len(data)], np.int64)
    full = None if name is None else f"object.{name}"
    handle = ARRAY_CALLS.gather([data, length], full, process_set, now=True)
    whole, lengths = handle.wait()
    return [_unpickled(part) for part in np.split(whole, lengths.cumsum()[:-1])]


def _overwrite(
    array: Array, root_rank: int, name: str | None, process_set: ProcessSet
) -> None:
    ARRAY_CALLS.broadcast(
        [array], root_rank, name, process_set, in_place=True, now=True
    ).wait()


def _pickled(obj: Any) -> Array:
    content = BytesIO()
    pickle.dump(obj, content)
    # Without another copy: an optimizer's state may be most of the memory.
    return np.frombuffer(content.getbuffer(), np.uint8)


def _unpickled(data: Array) -> Any:
    # Any: an array is as good as bytes, but not declared so.
    content: Any = data
    return pickle.loads(content)
