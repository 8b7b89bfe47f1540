"""Horovod's calls on tensors, under the names by which programs know them.

Calls are matched by name among the ranks of a process set, in whatever order the ranks
make them; calls without a name by their number among those of their kind. What
requires a gradient gets it.
"""

from collections.abc import Sequence
from time import monotonic_ns
from typing import Any

import torch
from torch import Tensor

from ..common.exceptions import HorovodInternalError
from ..common.process_sets import ProcessSet, global_process_set
from ..common.util import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    mpi_built,
    mpi_enabled,
    nccl_built,
    rocm_built,
)
from ..negotiation.agreement import JOIN
from ..negotiation.call_requests import Kind, Request
from ..negotiation.negotiator import Call
from . import gradients
from .basics import (
    add_process_set,
    cross_rank,
    cross_size,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_threads_supported,
    rank,
    remove_process_set,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from .compression import Compression, Compressor, compress_all, decompress_all
from .reduce_ops import Adasum, Average, Max, Min, Product, Sum, choose_op
from .submission import (
    Handle,
    broadcast_tensors,
    exchange_tensor,
    gather_tensors,
    reduce_tensors,
    scatter_tensors,
    submit,
)
from .world import WORLD

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "Handle",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]


def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Compressor = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Return the ranks' tensors reduced to one: their average, unless op says else.

    Args:
        tensor: Of the same shape and dtype on all ranks.
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
    return grouped_allreduce(
        [tensor],
        average,
        name,
        compression,
        op,
        prescale_factor,
        postscale_factor,
        process_set,
    )[0]


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
    """Return several tensors, each reduced as by allreduce(), in one pass."""
    chosen = choose_op(op, average)
    scales = (prescale_factor, postscale_factor)
    tensors = list(tensors)
    if len(tensors) == 1 and getattr(tensors[0], "is_sparse", False):
        handle = sparse_allreduce_async(tensors[0], name, chosen, process_set)
        return [synchronize(handle)]
    compressed, contexts = compress_all(tensors, compression)
    if gradients.needed(compressed):
        reduced = gradients.apply(
            gradients.Allreduce, name, chosen, scales, process_set, *compressed
        )
    else:
        reduced = reduce_tensors(
            compressed,
            name,
            chosen,
            scales,
            process_set,
            list,
            in_place=False,
            now=True,
        ).wait()
    return decompress_all(reduced, contexts, compression)


def allreduce_async(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Begin what allreduce() does, and return a handle for synchronize().

    The tensor may not be changed until synchronize() returns the result.
    """
    return reduce_tensors(
        [tensor],
        name,
        choose_op(op, average),
        (prescale_factor, postscale_factor),
        process_set,
        _only,
        in_place=False,
        now=False,
    )


def grouped_allreduce_async(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Begin what grouped_allreduce() does, and return a handle for synchronize()."""
    return reduce_tensors(
        list(tensors),
        name,
        choose_op(op, average),
        (prescale_factor, postscale_factor),
        process_set,
        list,
        in_place=False,
        now=False,
    )


def allreduce_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Do what allreduce() does in place, and return the tensor."""
    return grouped_allreduce_(
        [tensor], average, name, op, prescale_factor, postscale_factor, process_set
    )[0]


def grouped_allreduce_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Do what grouped_allreduce() does in place, and return the tensors."""
    found: list[Tensor] = reduce_tensors(
        list(tensors),
        name,
        choose_op(op, average),
        (prescale_factor, postscale_factor),
        process_set,
        list,
        in_place=True,
        now=True,
    ).wait()
    return found


def allreduce_async_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Begin what allreduce_() does, and return a handle for synchronize()."""
    return reduce_tensors(
        [tensor],
        name,
        choose_op(op, average),
        (prescale_factor, postscale_factor),
        process_set,
        _only,
        in_place=True,
        now=False,
    )


def grouped_allreduce_async_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Begin what grouped_allreduce_() does, and return a handle for synchronize()."""
    return reduce_tensors(
        list(tensors),
        name,
        choose_op(op, average),
        (prescale_factor, postscale_factor),
        process_set,
        list,
        in_place=True,
        now=False,
    )


def sparse_allreduce_async(
    tensor: Tensor,
    name: str | None = None,
    op: int | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
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
    return gather_tensors(parts, name, process_set, finish, now=False)


def allgather(
    tensor: Tensor,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Return the ranks' tensors, one after the other along the first dimension.

    They may differ in that, and in no other.
    """
    return grouped_allgather([tensor], name, process_set)[0]


def grouped_allgather(
    tensors: Sequence[Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Return several tensors, each gathered as by allgather()."""
    tensors = list(tensors)
    if gradients.needed(tensors):
        return list(gradients.apply(gradients.Allgather, name, process_set, *tensors))
    handle = gather_tensors(tensors, name, process_set, list, now=True)
    found: list[Tensor] = handle.wait()
    return found


def allgather_async(
    tensor: Tensor,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Begin what allgather() does, and return a handle for synchronize()."""
    return gather_tensors([tensor], name, process_set, _only, now=False)


def grouped_allgather_async(
    tensors: Sequence[Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Begin what grouped_allgather() does, and return a handle for synchronize()."""
    return gather_tensors(list(tensors), name, process_set, list, now=False)


def broadcast(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Return the tensor of one rank, on all ranks.

    Args:
        tensor: Of the same shape and dtype on all ranks.
        root_rank: Whose it is: its number among all ranks, also in a process set.
        name: By which the ranks' calls are matched.
        process_set: The ranks that take part.
    """
    if gradients.needed([tensor]):
        copied: Tensor = gradients.apply(
            gradients.Broadcast, name, root_rank, process_set, tensor
        )
        return copied
    handle = broadcast_tensors(
        [tensor], root_rank, name, process_set, _only, in_place=False, now=True
    )
    found: Tensor = handle.wait()
    return found


def broadcast_async(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Begin what broadcast() does, and return a handle for synchronize()."""
    return broadcast_tensors(
        [tensor], root_rank, name, process_set, _only, in_place=False, now=False
    )


def broadcast_(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Do what broadcast() does in place, and return the tensor."""
    found: Tensor = broadcast_tensors(
        [tensor], root_rank, name, process_set, _only, in_place=True, now=True
    ).wait()
    return found


def broadcast_async_(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Begin what broadcast_() does, and return a handle for synchronize()."""
    return broadcast_tensors(
        [tensor], root_rank, name, process_set, _only, in_place=True, now=False
    )


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
    if gradients.needed([tensor]):
        both = gradients.apply(gradients.Alltoall, name, splits, process_set, tensor)
    else:
        both = exchange_tensor(tensor, splits, name, process_set, now=True).wait()
    return both[0] if splits is None else both


def alltoall_async(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Begin what alltoall() does, and return a handle for synchronize()."""
    handle = exchange_tensor(tensor, splits, name, process_set, now=False)
    return handle if splits is not None else _first_of(handle)


def reducescatter(
    tensor: Tensor,
    name: str | None = None,
    compression: Compressor = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """Return this rank's rows of the ranks' tensors reduced to one.

    The first ranks get one row more, where the rows cannot be shared equally.
    """
    return grouped_reducescatter(
        [tensor], name, compression, op, process_set, prescale_factor, postscale_factor
    )[0]


def grouped_reducescatter(
    tensors: Sequence[Tensor],
    name: str | None = None,
    compression: Compressor = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Tensor]:
    """Return rows of several tensors, each reduced as by reducescatter()."""
    chosen, scales = choose_op(op, None), (prescale_factor, postscale_factor)
    compressed, contexts = compress_all(tensors, compression)
    if gradients.needed(compressed):
        reduced = gradients.apply(
            gradients.Reducescatter, name, chosen, scales, process_set, *compressed
        )
    else:
        reduced = scatter_tensors(
            compressed, name, chosen, scales, process_set, list, now=True
        ).wait()
    return decompress_all(reduced, contexts, compression)


def reducescatter_async(
    tensor: Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Begin what reducescatter() does, and return a handle for synchronize()."""
    chosen, scales = choose_op(op, None), (prescale_factor, postscale_factor)
    return scatter_tensors(
        [tensor], name, chosen, scales, process_set, _only, now=False
    )


def grouped_reducescatter_async(
    tensors: Sequence[Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Begin what grouped_reducescatter() does; return a handle for synchronize()."""
    chosen, scales = choose_op(op, None), (prescale_factor, postscale_factor)
    return scatter_tensors(
        list(tensors), name, chosen, scales, process_set, list, now=False
    )


def poll(handle: Handle) -> bool:
    """Return whether a call is over, so that synchronize() returns at once."""
    return handle.poll()


def synchronize(handle: Handle) -> Any:
    """Block until a call is over, and return its result.

    Raises:
        HorovodInternalError: The ranks' tensors or arguments differ, or a rank has
            ended.
    """
    return handle.wait()


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Return when all ranks of the process set have called it."""
    submit(process_set, Call(Request(Kind.BARRIER, None)), True).wait()


def join(device: int = -1) -> int:
    """Wait until all ranks have called this, and return the rank that did so last.

    Meanwhile this rank takes part in the allreduces and barriers of the others. It
    contributes zeros to a Sum and an Average, which still divides by all ranks, and
    what changes nothing to the rest. Other calls fail on the ranks that make them.

    Args:
        device: A GPU in Horovod; not used here.
    """
    # All ranks of a host have one clock.
    request = Request(Kind.JOIN, JOIN, counts=(monotonic_ns(),))
    handle = submit(global_process_set, Call(request), True)
    last: int = handle.wait()
    return last


def _only(results: list[Tensor]) -> Tensor:
    return results[0]


class _FirstOf(Handle):
    """A handle whose result is the first of two."""

    def wait(self) -> Any:
        return super().wait()[0]


def _first_of(handle: Handle) -> Handle:
    handle.__class__ = _FirstOf
    return handle


class _Basics:
    """What programs reach as hvd.mpi_ops._basics."""

    def _get_process_set_ids_and_ranks(self) -> dict[int, list[int]]:
        return dict(WORLD.sets())


_basics = _Basics()
