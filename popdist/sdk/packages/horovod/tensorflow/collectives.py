"""Horovod's calls on TensorFlow's tensors.

Calls are matched by name among the ranks of a process set. A call without a name is
matched by the name of its first tensor in a graph, and eagerly by its number among the
calls of its kind. device_dense and device_sparse have no effect: all tensors are in the
CPU's memory.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.ops import EagerTensor

from popdist.negotiation.call_requests import Kind
from popdist.tensorflow.tensors.memory import Tensor
from popdist.tensorflow.tensors.operation import unique_name

from ..common.calls.reduce_ops import (
    Average,
    Reduction,
    Sum,
    choose_op,
)
from ..common.calls.submission import CallArguments
from ..common.compression import Compressor, compress_all, decompress_all
from ..common.process_sets import ProcessSet, global_process_set
from .calls import TensorLike, results_of, tensor_from
from .compression import Compression
from .errors import InvalidArgumentError


@tf.autograph.experimental.do_not_convert
def allreduce(
    tensor: TensorLike,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Compressor = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Tensor:
    """Return the ranks' tensors reduced to one: their average, unless op says else.

    Values and indices of tf.IndexedSlices are gathered.

    Args:
        tensor: A tensor of the same shape and dtype on all ranks.
        average: An earlier name of the choice between op=Average and op=Sum.
        device_dense: Has no effect.
        device_sparse: Has no effect.
        compression: The compressor of the tensor that is reduced.
        op: Average, Sum, Min, Max, Product or Adasum.
        prescale_factor: A factor for each rank's tensor, before the reduction.
        postscale_factor: A factor for the result.
        name: The name that matches the ranks' calls.
        process_set: The ranks that take part.
        ignore_name_scope: In a graph, match by the name without its scope.

    Raises:
        ValueError: The arguments are not valid. Eagerly it is a
            tf.errors.InvalidArgumentError, too; a running graph raises only the latter.
        HorovodInternalError: The ranks' tensors or arguments differ, or a rank has
            ended. Eagerly it is a tf.errors.FailedPreconditionError or an UnknownError,
            too; in a graph it is only that.
    """
    (result,) = grouped_allreduce(
        [tensor],
        average,
        compression=compression,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        process_set=process_set,
        ignore_name_scope=ignore_name_scope,
        name=name,
    )
    return result


@tf.autograph.experimental.do_not_convert
def grouped_allreduce(
    tensors: Sequence[TensorLike],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Compressor = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Tensor]:
    """Return several tensors, each reduced as by allreduce(), in one call."""
    reduction = Reduction(choose_op(op, average), prescale_factor, postscale_factor)
    name = _name_of(name, ignore_name_scope)
    sparse = {i: each for i, each in enumerate(tensors) if _is_sparse(each)}
    dense = {i: each for i, each in enumerate(tensors) if i not in sparse}
    arguments = CallArguments(Kind.ALLREDUCE, name, process_set, reduction)
    reduced = _compressed(arguments, [*dense.values()], compression)
    results = dict(zip(dense, reduced, strict=True))
    gathered = _gathered_slices([*sparse.values()], arguments)
    results |= zip(sparse, gathered, strict=True)
    return [results[index] for index in range(len(tensors))]


def _compressed(
    arguments: CallArguments, tensors: Sequence[TensorLike], compression: Compressor
) -> list[Tensor]:
    """Return the results of a call on tensors, which is made on compressed ones."""
    if not tensors:
        return []
    values = [tensor_from(tensor) for tensor in tensors]
    compressed, contexts = compress_all(values, compression)
    return decompress_all(results_of(arguments, compressed), contexts, compression)


def _gathered_slices(
    slices: Sequence[tf.IndexedSlices], arguments: CallArguments
) -> list[tf.IndexedSlices]:
    """Return slices of all ranks, with divided values for an Average."""
    if not slices:
        return []
    reduction, process_set = arguments.reduction, arguments.process_set
    if reduction != Reduction(reduction.op) or reduction.op not in (Average, Sum):
        raise NotImplementedError(
            "tf.IndexedSlices are reduced by Average and Sum only, without scale "
            "factors. Give tf.convert_to_tensor(slices), or sparse_as_dense=True to an "
            "optimizer or tape."
        )
    parts = [part for each in slices for part in (each.values, each.indices)]
    gather = CallArguments(Kind.ALLGATHER, arguments.name, process_set)
    gathered = results_of(gather, parts)
    if reduction.op is Average:
        size = process_set.size() or 1
        gathered[::2] = [each / tf.cast(size, each.dtype) for each in gathered[::2]]
    pairs = zip(gathered[::2], gathered[1::2], slices, strict=True)
    return [
        tf.IndexedSlices(values, indices, dense_shape=each.dense_shape)
        for values, indices, each in pairs
    ]


@tf.autograph.experimental.do_not_convert
def allgather(
    tensor: TensorLike,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Return the ranks' tensors, one after the other along the first dimension.

    They may differ in that, and in no other.
    """
    return grouped_allgather([tensor], name, ignore_name_scope, process_set)[0]


@tf.autograph.experimental.do_not_convert
def grouped_allgather(
    tensors: Sequence[TensorLike],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Return several tensors, each gathered as by allgather(), in one call."""
    values = [tensor_from(tensor) for tensor in tensors]
    name = _name_of(name, ignore_name_scope)
    arguments = CallArguments(Kind.ALLGATHER, name, process_set)
    return results_of(arguments, values) if values else []


@tf.autograph.experimental.do_not_convert
def broadcast(
    tensor: TensorLike,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Return the tensor of one rank, on all ranks.

    Args:
        tensor: A tensor of the same shape and dtype on all ranks.
        root_rank: The rank that sends its tensor: its number among all ranks, also in a
            process set.
        name: The name that matches the ranks' calls.
        ignore_name_scope: In a graph, match by the name without its scope.
        process_set: The ranks that take part.
    """
    name = _name_of(name, ignore_name_scope)
    arguments = CallArguments(Kind.BROADCAST, name, process_set, root_rank=root_rank)
    return results_of(arguments, [tensor_from(tensor)])[0]


@tf.autograph.experimental.do_not_convert
def broadcast_(
    variables: Iterable[TensorLike],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Overwrite variables with one rank's.

    Returns the variables, or in a session's graph what they are then.
    """
    given = list(variables)
    if not given:
        return given
    # Keras 3's variables hold a variable of TensorFlow.
    written = [each if isinstance(each, tf.Variable) else each.value for each in given]
    values = [tensor_from(variable) for variable in written]
    arguments = CallArguments(
        Kind.BROADCAST, _name_of(name), process_set, root_rank=root_rank
    )
    copies = results_of(arguments, values)
    assigned = [
        variable.assign(copy) for variable, copy in zip(written, copies, strict=True)
    ]
    return given if tf.executing_eagerly() else assigned


@tf.autograph.experimental.do_not_convert
def alltoall(
    tensor: TensorLike,
    splits: TensorLike = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Hand each rank its rows of this rank's tensor, and return what this one gets.

    Args:
        tensor: Its rows go to the ranks in their order.
        splits: How many rows each rank gets. None for equal numbers.
        name: The name that matches the ranks' calls.
        ignore_name_scope: In a graph, match by the name without its scope.
        process_set: The ranks that take part.

    Returns the tensor and, if splits are given, how many rows each rank has sent.
    """
    value = tensor_from(tensor)
    counts = None if splits is None else tensor_from(splits)
    name = _name_of(name, ignore_name_scope)
    arguments = CallArguments(Kind.ALLTOALL, name, process_set, splits=counts)
    rows, received = results_of(arguments, [value])
    return rows if splits is None else (rows, received)


@tf.autograph.experimental.do_not_convert
def reducescatter(
    tensor: TensorLike,
    device_dense: str = "",
    compression: Compressor = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """Return this rank's rows of the ranks' tensors reduced to one.

    The first ranks get one row more, where the rows cannot be shared equally.
    """
    reduction = Reduction(choose_op(op, None), prescale_factor, postscale_factor)
    name = _name_of(name, ignore_name_scope)
    arguments = CallArguments(Kind.REDUCESCATTER, name, process_set, reduction)
    return _scattered(arguments, [tensor], compression)[0]


@tf.autograph.experimental.do_not_convert
def grouped_reducescatter(
    tensors: Sequence[TensorLike],
    device_dense: str = "",
    compression: Compressor = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Tensor]:
    """Return several tensors, each scattered as by reducescatter(), in one call."""
    reduction = Reduction(choose_op(op, None), prescale_factor, postscale_factor)
    arguments = CallArguments(Kind.REDUCESCATTER, None, process_set, reduction)
    return _scattered(arguments, tensors, compression)


def _scattered(
    arguments: CallArguments, tensors: Sequence[TensorLike], compression: Compressor
) -> list[Tensor]:
    values = [tensor_from(tensor) for tensor in tensors]
    if any(value.shape.rank == 0 for value in values):
        # AutoGraph keeps the types of Python's own errors alone.
        kind = InvalidArgumentError if tf.executing_eagerly() else ValueError
        raise kind(
            "A tensor of reducescatter has no dimensions, but needs a first one. "
            "Reshape it."
        )
    return _compressed(arguments, values, compression)


def _name_of(name: str | None, ignore_name_scope: bool = False) -> str | None:
    """Return the name that matches a call: in a graph, it is unique."""
    if name is None or ignore_name_scope or tf.executing_eagerly():
        return name
    return unique_name(name)


def _is_sparse(tensor: TensorLike) -> bool:
    # isinstance() with TensorFlow's classes takes microseconds, and most tensors have
    # this type.
    return type(tensor) is not EagerTensor and isinstance(tensor, tf.IndexedSlices)
