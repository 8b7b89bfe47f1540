"""Horovod's calls on torch's tensors.

Calls are matched by name among the ranks of a process set, in whatever order the ranks
make them; calls without a name by their number among those of their kind. What
requires a gradient gets it.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from popdist.negotiation.call_requests import Kind

from ...common.calls.reduce_ops import Average, Reduction, Sum, choose_op
from ...common.calls.submission import CallArguments, HorovodHandle
from ...common.compression import Compressor, compress_all, decompress_all
from ...common.process_sets import ProcessSet, global_process_set
from ..compression import Compression
from .gradients import results_of
from .torch_calls import TORCH_CALLS
from .variants import of_one_tensor, variants


def _of_allreduce(
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> CallArguments:
    reduction = Reduction(choose_op(op, average), prescale_factor, postscale_factor)
    return CallArguments(Kind.ALLREDUCE, name, process_set, reduction)


def _of_reducescatter(
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> CallArguments:
    reduction = Reduction(choose_op(op, None), prescale_factor, postscale_factor)
    return CallArguments(Kind.REDUCESCATTER, name, process_set, reduction)


def _of_allgather(
    name: str | None = None, process_set: ProcessSet = global_process_set
) -> CallArguments:
    return CallArguments(Kind.ALLGATHER, name, process_set)


def _of_broadcast(
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> CallArguments:
    return CallArguments(Kind.BROADCAST, name, process_set, root_rank=root_rank)


def grouped_allreduce(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Compressor = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Return the ranks' tensors reduced to one: their average, unless op says else.

    A grouped call takes and returns several tensors, which are reduced in one pass.

    Args:
        tensors: Of the same shape and dtype on all ranks.
        average: An earlier name of the choice between op=Average and op=Sum.
        name: By which the ranks' calls are matched.
        compression: What tensors are turned into before they are reduced.
        op: Average, Sum, Min, Max, Product or Adasum.
        prescale_factor: What each rank's tensor is multiplied with before.
        postscale_factor: What the result is multiplied with.
        process_set: The ranks that take part.

    Raises:
        ValueError: The arguments are not valid.
        HorovodInternalError: The ranks' tensors or arguments differ, or a rank has
            ended.
    """
    arguments = _of_allreduce(
        average, name, op, prescale_factor, postscale_factor, process_set
    )
    tensors = list(tensors)
    if len(tensors) == 1 and getattr(tensors[0], "is_sparse", False):
        chosen = arguments.reduction.op
        handle = sparse_allreduce_async(tensors[0], name, chosen, process_set)
        return [handle.wait()]
    return _compressed(arguments, tensors, compression)


def grouped_reducescatter(
    tensors: Sequence[Tensor],
    name: str | None = None,
    compression: Compressor = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Tensor]:
    """Return this rank's rows of the ranks' tensors reduced to one.

    The first ranks get one row more, where the rows cannot be shared equally.
    """
    arguments = _of_reducescatter(
        name, op, process_set, prescale_factor, postscale_factor
    )
    return _compressed(arguments, list(tensors), compression)


def _compressed(
    arguments: CallArguments, tensors: Sequence[Tensor], compression: Compressor
) -> list[Tensor]:
    """Return the results of a call on tensors, which is made on compressed ones."""
    compressed, contexts = compress_all(tensors, compression)
    reduced = results_of(arguments, compressed)
    return decompress_all(reduced, contexts, compression)


def sparse_allreduce_async(
    tensor: Tensor,
    name: str | None = None,
    op: int | None = None,
    process_set: ProcessSet = global_process_set,
) -> HorovodHandle:
    """Begin an allreduce of sparse tensors, and return a handle for synchronize().

    The ranks' indices and values are gathered. op is Average or Sum.
    """
    chosen = choose_op(op, None)
    if chosen not in (Average, Sum):
        raise ValueError(
            f"Sparse tensors are reduced by Average and Sum only, not {chosen.name}."
        )
    if tensor.layout is not torch.sparse_coo:
        raise ValueError(
            f"The tensor has the layout {tensor.layout}, but must be a sparse one in "
            "coordinate format. Use allreduce_async() for others."
        )
    flat = tensor.detach().coalesce()
    shape = flat.shape

    def finish(results: list[Tensor]) -> Tensor:
        indices, values = results
        if chosen is Average:
            values = values / (process_set.size() or 1)
        return torch.sparse_coo_tensor(
            indices.t(), values, shape, check_invariants=False
        ).coalesce()

    parts = [flat.indices().t(), flat.values()]
    gather = CallArguments(Kind.ALLGATHER, name, process_set)
    return TORCH_CALLS.begin(gather, parts, finish)


def grouped_allgather(
    tensors: Sequence[Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Return the ranks' tensors, one after the other along the first dimension.

    They may differ in that, and in no other.
    """
    gathered: list[Tensor] = results_of(_of_allgather(name, process_set), list(tensors))
    return gathered


def grouped_broadcast(
    tensors: Sequence[Tensor],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Return the tensor of one rank, on all ranks.

    Args:
        tensors: Of the same shape and dtype on all ranks.
        root_rank: Whose it is: its number among all ranks, also in a process set.
        name: By which the ranks' calls are matched.
        process_set: The ranks that take part.
    """
    arguments = _of_broadcast(root_rank, name, process_set)
    copied: list[Tensor] = results_of(arguments, list(tensors))
    return copied


def alltoall(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Hand each rank its rows of this rank's tensor, and return what this one gets.

    Args:
        tensor: Its rows go to the ranks in their order.
        splits: How many rows each rank gets. None for equal numbers.
        name: By which the ranks' calls are matched.
        process_set: The ranks that take part.

    Returns the tensor and, if splits are given, how many rows each rank has sent.
    """
    arguments = CallArguments(Kind.ALLTOALL, name, process_set, splits=splits)
    rows, received = results_of(arguments, [tensor])
    return rows if splits is None else (rows, received)


def alltoall_async(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> HorovodHandle:
    """Begin what alltoall() does, and return a handle for synchronize()."""
    arguments = CallArguments(Kind.ALLTOALL, name, process_set, splits=splits)
    handle = TORCH_CALLS.begin(arguments, [tensor])
    return handle if splits is not None else handle.first()


allreduce = of_one_tensor(grouped_allreduce)
grouped_allreduce_async, grouped_allreduce_, grouped_allreduce_async_ = variants(
    _of_allreduce, grouped_allreduce
)
allreduce_async = of_one_tensor(grouped_allreduce_async)
allreduce_ = of_one_tensor(grouped_allreduce_)
allreduce_async_ = of_one_tensor(grouped_allreduce_async_)

reducescatter = of_one_tensor(grouped_reducescatter)
grouped_reducescatter_async, *_ = variants(_of_reducescatter, grouped_reducescatter)
reducescatter_async = of_one_tensor(grouped_reducescatter_async)

allgather = of_one_tensor(grouped_allgather)
grouped_allgather_async, *_ = variants(_of_allgather, grouped_allgather)
allgather_async = of_one_tensor(grouped_allgather_async)

# Horovod broadcasts one tensor only.
broadcast = of_one_tensor(grouped_broadcast)
broadcast_async, broadcast_, broadcast_async_ = map(
    of_one_tensor, variants(_of_broadcast, grouped_broadcast)
)
