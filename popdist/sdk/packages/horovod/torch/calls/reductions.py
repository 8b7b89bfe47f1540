"""Horovod's calls that reduce tensors.

Calls are matched by name among the ranks of a process set, in whatever order the ranks
make them; calls without a name by their number among those of their kind. What
requires a gradient gets it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ...common.process_sets import ProcessSet, global_process_set
from ..compression import Compression, Compressor, compress_all, decompress_all
from ..execution.reduce_ops import Average, Reduction, Sum, choose_op
from . import gradients
from .single_calls import of_one_tensor
from .submission import HorovodHandle, gather_tensors, reduce_tensors, scatter_tensors


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
    chosen = choose_op(op, average)
    tensors = list(tensors)
    if len(tensors) == 1 and getattr(tensors[0], "is_sparse", False):
        handle = sparse_allreduce_async(tensors[0], name, chosen, process_set)
        return [handle.wait()]
    reduction = Reduction(chosen, prescale_factor, postscale_factor)
    compressed, contexts = compress_all(tensors, compression)
    if gradients.needed(compressed):
        reduced = gradients.apply(
            gradients.Allreduce, name, reduction, process_set, *compressed
        )
    else:
        reduced = reduce_tensors(
            compressed, name, reduction, process_set, in_place=False, now=True
        ).wait()
    return decompress_all(reduced, contexts, compression)


def grouped_allreduce_async(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> HorovodHandle:
    """Begin what grouped_allreduce() does, and return a handle for synchronize().

    A tensor may not be changed until synchronize() returns the result.
    """
    reduction = Reduction(choose_op(op, average), prescale_factor, postscale_factor)
    return reduce_tensors(
        list(tensors), name, reduction, process_set, in_place=False, now=False
    )


def grouped_allreduce_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Do what grouped_allreduce() does in place, and return what was given."""
    reduction = Reduction(choose_op(op, average), prescale_factor, postscale_factor)
    handle = reduce_tensors(
        list(tensors), name, reduction, process_set, in_place=True, now=True
    )
    reduced: list[Tensor] = handle.wait()
    return reduced


def grouped_allreduce_async_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> HorovodHandle:
    """Begin what grouped_allreduce_() does, and return a handle for synchronize()."""
    reduction = Reduction(choose_op(op, average), prescale_factor, postscale_factor)
    return reduce_tensors(
        list(tensors), name, reduction, process_set, in_place=True, now=False
    )


allreduce = of_one_tensor(grouped_allreduce)
allreduce_async = of_one_tensor(grouped_allreduce_async)
allreduce_ = of_one_tensor(grouped_allreduce_)
allreduce_async_ = of_one_tensor(grouped_allreduce_async_)


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
    return gather_tensors(parts, name, process_set, finish, now=False)


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
    reduction = Reduction(choose_op(op, None), prescale_factor, postscale_factor)
    compressed, contexts = compress_all(tensors, compression)
    if gradients.needed(compressed):
        reduced = gradients.apply(
            gradients.Reducescatter, name, reduction, process_set, *compressed
        )
    else:
        handle = scatter_tensors(compressed, name, reduction, process_set, now=True)
        reduced = handle.wait()
    return decompress_all(reduced, contexts, compression)


def grouped_reducescatter_async(
    tensors: Sequence[Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> HorovodHandle:
    """Begin what grouped_reducescatter() does; return a handle for synchronize()."""
    reduction = Reduction(choose_op(op, None), prescale_factor, postscale_factor)
    return scatter_tensors(list(tensors), name, reduction, process_set, now=False)


reducescatter = of_one_tensor(grouped_reducescatter)
reducescatter_async = of_one_tensor(grouped_reducescatter_async)
