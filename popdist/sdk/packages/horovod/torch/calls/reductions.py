"""Horovod's calls that reduce tensors.

Calls are matched by name among the ranks of a process set, in whatever order the ranks
make them; calls without a name by their number among those of their kind. What
requires a gradient gets it.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from ...common.calls.reduce_ops import Average, Reduction, Sum, choose_op
from ...common.calls.submission import HorovodHandle
from ...common.compression import Compressor, compress_all, decompress_all
from ...common.process_sets import ProcessSet, global_process_set
from ..compression import Compression
from . import gradients
from .torch_calls import TORCH_CALLS
from .variants import of_one_tensor, variants


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
    begin = partial(
        TORCH_CALLS.reduce, name=name, reduction=reduction, process_set=process_set
    )
    gradient = partial(gradients.of_allreduce, reduction, process_set)
    compressed, contexts = compress_all(tensors, compression)
    reduced = gradients.results_of(begin, gradient, compressed)
    return decompress_all(reduced, contexts, compression)


def _begin_allreduce(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    in_place: bool,
    now: bool,
) -> HorovodHandle:
    reduction = Reduction(choose_op(op, average), prescale_factor, postscale_factor)
    return TORCH_CALLS.reduce(
        list(tensors), name, reduction, process_set, in_place=in_place, now=now
    )


grouped_allreduce_async, grouped_allreduce_, grouped_allreduce_async_ = variants(
    _begin_allreduce, grouped_allreduce
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
    return TORCH_CALLS.gather(parts, name, process_set, finish)


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
    begin = partial(
        TORCH_CALLS.scatter, name=name, reduction=reduction, process_set=process_set
    )
    gradient = partial(gradients.of_reducescatter, reduction, process_set)
    compressed, contexts = compress_all(tensors, compression)
    reduced = gradients.results_of(begin, gradient, compressed)
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
    return TORCH_CALLS.scatter(list(tensors), name, reduction, process_set)


reducescatter = of_one_tensor(grouped_reducescatter)
reducescatter_async = of_one_tensor(grouped_reducescatter_async)
