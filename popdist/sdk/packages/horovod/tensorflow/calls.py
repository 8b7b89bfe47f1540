"""Calls on TensorFlow's tensors, without gradients: eagerly, in tf.function, sessions.

In a tf.function they are made in the order in which they were traced. A session's graph
makes calls in any order, and gives them names.
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.ops import (
    EagerTensor,
    executing_eagerly_outside_functions,
)

from popdist.engine.calls.array_rows import Array
from popdist.engine.spec.dtypes import DTYPES
from popdist.replicated.shares import even_share
from popdist.tensorflow.tensors.memory import Tensor, new_memories, new_memory
from popdist.tensorflow.tensors.operation import (
    call_by_name,
    call_in_order,
    name_of,
    unique_name,
)
from popdist.tensorflow.tensors.reduction import reduce_in_graph

from ..common.calls.library import NUMPY_ARRAYS
from ..common.calls.reduce_ops import Adasum, Average, Reduction
from ..common.calls.submission import (
    BASICS,
    HorovodHandle,
    TableReduction,
    TensorCalls,
)
from ..common.process_sets import ProcessSet
from .errors import InvalidArgumentError, tensorflow_errors

# Any: tensors, variables, and what TensorFlow can turn into tensors.
TensorLike = Any

# Results become tensors without a copy.
TENSORFLOW_CALLS = TensorCalls(
    NUMPY_ARRAYS._replace(
        new=lambda shape, like: new_memory(shape, like.dtype),
        new_like=lambda arrays: new_memories([(a.shape, a.dtype) for a in arrays]),
    )
)


def tensor_from(value: TensorLike) -> Tensor:
    """Return a value as a tensor."""
    # TensorFlow takes 5 us to find out that it is one.
    return value if type(value) is EagerTensor else tf.convert_to_tensor(value)


def reduce_tensors(
    tensors: Sequence[Tensor],
    reduction: Reduction,
    name: str | None,
    process_set: ProcessSet,
) -> list[Tensor]:
    """Return the ranks' tensors, reduced to one each."""
    if _is_for_table(tensors, reduction):
        return _reduce_by_table(tensors, reduction, name, process_set)
    begin = partial(TENSORFLOW_CALLS.reduce, reduction=reduction)
    specs = _specs_of(tensors)
    return _make_call(begin, "Allreduce", tensors, specs, name, process_set)


def gather_tensors(
    tensors: Sequence[Tensor], name: str | None, process_set: ProcessSet
) -> list[Tensor]:
    """Return the ranks' tensors, one after the other along the first dimension."""
    specs = [_with_length(tensor, None) for tensor in tensors]
    begin = TENSORFLOW_CALLS.gather
    return _make_call(begin, "Allgather", tensors, specs, name, process_set)


def broadcast_tensors(
    tensors: Sequence[Tensor],
    root_rank: int,
    name: str | None,
    process_set: ProcessSet,
) -> list[Tensor]:
    """Return the tensors of one rank."""
    begin = partial(TENSORFLOW_CALLS.broadcast, root_rank=root_rank)
    specs = _specs_of(tensors)
    return _make_call(begin, "Broadcast", tensors, specs, name, process_set)


def exchange_rows(
    tensor: Tensor, splits: Tensor | None, name: str | None, process_set: ProcessSet
) -> list[Tensor]:
    """Return the rows that the ranks have for this one, and how many each has sent."""

    def begin(arrays: list[Array], **arguments: Any) -> HorovodHandle:
        rows, *rest = arrays
        given = rest[0] if rest else None
        return TENSORFLOW_CALLS.exchange([rows], given, **arguments)

    specs = [
        _with_length(tensor, None),
        tf.TensorSpec((process_set.size(),), tf.int32),
    ]
    tensors = [tensor] if splits is None else [tensor, splits]
    return _make_call(begin, "Alltoall", tensors, specs, name, process_set)


def scatter_tensors(
    tensors: Sequence[Tensor],
    reduction: Reduction,
    name: str | None,
    process_set: ProcessSet,
) -> list[Tensor]:
    """Return this rank's rows of the ranks' tensors, reduced to one each."""
    if any(tensor.shape.rank == 0 for tensor in tensors):
        # AutoGraph keeps the types of Python's own errors alone.
        kind = InvalidArgumentError if tf.executing_eagerly() else ValueError
        raise kind(
            "A tensor of reducescatter has no dimensions, but needs a first one. "
            "Reshape it."
        )
    begin = partial(TENSORFLOW_CALLS.scatter, reduction=reduction)
    member, size = process_set.rank() or 0, process_set.size() or 1

    def length_of(tensor: Tensor) -> int | None:
        rows = tensor.shape[0] if tensor.shape.rank else None
        return None if rows is None else even_share(rows, member, size).length

    specs = [_with_length(tensor, length_of(tensor)) for tensor in tensors]
    return _make_call(begin, "Reducescatter", tensors, specs, name, process_set)


def make_call(begin: Callable[..., HorovodHandle]) -> Tensor:
    """Return the number that a call without tensors results in; 0 if in none."""

    def numbered(_: list[Array], *, now: bool) -> HorovodHandle:
        return _NumberHandle(begin(now=now))

    return _carried_out(numbered, [], [tf.TensorSpec((), tf.int32)])[0]


class _NumberHandle(HorovodHandle):
    """A call that may be under way. Its result becomes an array in a list."""

    def __init__(self, handle: HorovodHandle) -> None:
        self._handle = handle

    def wait(self) -> list[Array]:
        """Block until the call is over, and return its result."""
        array = new_memory((), np.dtype(np.int32))
        array[...] = self._handle.wait() or 0
        return [array]


class _NamedCall:
    """A call of a session's graph, which has begun."""

    def __init__(
        self, begin: Callable[..., HorovodHandle], arrays: list[Array]
    ) -> None:
        with tensorflow_errors():
            self._handle = begin(arrays, now=False)

    def wait(self) -> list[Array]:
        with tensorflow_errors():
            results: list[Array] = self._handle.wait()
            return results


def _make_call(
    begin: Callable[..., HorovodHandle],
    kind: str,
    tensors: Sequence[Tensor],
    specs: Sequence[tf.TensorSpec],
    name: str | None,
    process_set: ProcessSet,
) -> list[Tensor]:
    """Make a call that is matched by its name, or eagerly by its number without one."""
    if not tf.executing_eagerly():
        BASICS.check_registered(process_set)
        name = name or _name_in_graph(kind, tensors)
    begin = partial(begin, name=name, process_set=process_set)
    return _carried_out(begin, tensors, specs)


def _name_in_graph(kind: str, tensors: Sequence[Tensor]) -> str:
    """Return the name of a call: as in Horovod, by its first tensor."""
    tensor = re.sub("[^a-zA-Z0-9_]", "_", name_of(tensors[0]))
    return unique_name(f"Horovod{kind}_{tensor}")


def _reduce_by_table(
    tensors: Sequence[Tensor],
    reduction: Reduction,
    name: str | None,
    process_set: ProcessSet,
) -> list[Tensor]:
    """Return the ranks' tensors, reduced by popdist's operations in a graph."""
    BASICS.check_registered(process_set)
    layouts = [(each.dtype.name, _known_shape(each)) for each in tensors]
    name = name or _name_in_graph("Allreduce", tensors)
    reduction_of_tables = TableReduction(layouts, name, reduction, process_set)

    def reduce(*tables: bytes) -> None:
        with tensorflow_errors():
            reduction_of_tables(*tables)

    device = ["/device:CPU:0"]
    values = [[tensor] for tensor in tensors]
    return [total for (total,) in reduce_in_graph(reduce, values, device, False)]


def _is_for_table(tensors: Sequence[Tensor], reduction: Reduction) -> bool:
    """Return whether popdist's operations can reduce tensors, in a graph.

    Nothing is to be done but to reduce them.
    """
    if tf.executing_eagerly() or not executing_eagerly_outside_functions():
        return False
    dtypes = {tensor.dtype for tensor in tensors}
    return (
        all(
            dtype.name in DTYPES and (dtype.is_floating or reduction.op is not Average)
            for dtype in dtypes
        )
        and reduction == Reduction(reduction.op)
        and reduction.op is not Adasum
    )


def _known_shape(tensor: Tensor) -> tuple[int, ...] | None:
    return tuple(tensor.shape) if tensor.shape.is_fully_defined() else None


def _carried_out(
    begin: Callable[..., HorovodHandle],
    tensors: Sequence[Tensor],
    specs: Sequence[tf.TensorSpec],
) -> list[Tensor]:
    def call(arrays: list[Array]) -> list[Array]:
        results: list[Array] = begin(arrays, now=True).wait()
        return results

    if tf.executing_eagerly():
        with tensorflow_errors():
            return call_in_order(call, tensors, specs)
    if executing_eagerly_outside_functions():
        return call_in_order(tensorflow_errors()(call), tensors, specs)
    return call_by_name(partial(_NamedCall, begin), tensors, specs)


def _specs_of(tensors: Sequence[Tensor]) -> list[tf.TensorSpec]:
    """Return the specs of results with the shapes of tensors, for a graph."""
    if tf.executing_eagerly():
        return []
    return [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors]


def _with_length(tensor: Tensor, length: int | None) -> tf.TensorSpec:
    """Return what a result is like: a tensor, but for its first dimension."""
    if tensor.shape.rank is None:
        return tf.TensorSpec(None, tensor.dtype)
    return tf.TensorSpec([length, *tensor.shape[1:]], tensor.dtype)
