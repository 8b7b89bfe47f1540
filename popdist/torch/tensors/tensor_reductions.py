"""The reductions of an engine group on torch tensors."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from popdist.engine.calls.array_transport import ArrayTransport
from popdist.engine.calls.collective import Action, collective
from popdist.engine.group import Group
from popdist.engine.spec.dtypes import REDUCTIONS
from popdist.torch.tensors.tensor_rows import (
    CODES,
    TORCH,
    TensorArray,
    check_like,
    check_written,
    code_of,
    local_tensors,
)


def reduce_in_place(group: Group, tensor: Tensor, reduction: int) -> bool:
    """All-reduce one tensor in place, if that takes no preparation.

    Args:
        reduction: The engine's code; not the mean's for bools.

    Returns:
        Whether the tensor was reduced. If not, nothing was done: call all_reduce().
    """
    if not tensor.is_cpu or not tensor.is_contiguous() or tensor.is_neg():
        return False
    code = CODES.get(tensor.dtype)
    return code is not None and group.all_reduce_at(
        tensor.data_ptr(), tensor.numel(), code, reduction
    )


def _reduce_now(
    group: Group,
    arrays: Sequence[TensorArray],
    op: str = "sum",
    *,
    out: Sequence[TensorArray] | None = None,
) -> Any:
    """Reduce an array, if it is one tensor that takes no preparation."""
    if out is not None or len(arrays) != 1 or op not in REDUCTIONS:
        return NotImplemented
    (tensor,) = arrays
    if not isinstance(tensor, Tensor) or (op == "mean" and tensor.dtype is torch.bool):
        return NotImplemented
    is_reduced = reduce_in_place(group, tensor, REDUCTIONS[op])
    return list(arrays) if is_reduced else NotImplemented


@collective(TORCH, shortcut=_reduce_now)
def all_reduce(
    group: Group,
    arrays: Sequence[TensorArray],
    op: str = "sum",
    *,
    out: Sequence[TensorArray] | None = None,
) -> Action:
    """Reduce several arrays as if they were one; return the list they were written to.

    Args:
        arrays: Tensors; in a group with replicas, lists of a tensor for each local
            replica. Dtypes may differ: there is a call for each.
        out: Where the results are written: as `arrays`, which is the default. An array
            may be given several times, as tied weights are.
    """
    results = arrays if out is None else out
    pairs = _local_pairs(arrays, results, group.num_local_replicas)
    reduction = _reduction_of(op, [sources[0] for sources, _ in pairs])

    def action(carrier: ArrayTransport[Tensor]) -> list[TensorArray]:
        carrier.all_reduce(pairs, reduction)
        return list(results)

    return action


@collective(TORCH)
def reduce(
    group: Group,
    array: TensorArray,
    op: str = "sum",
    root: int = 0,
    *,
    out: Tensor | None = None,
) -> Action:
    """Reduce all replicas' tensors where replica `root` lives; return the result there.

    It is written to `out`, by default over the first tensor of the root's member.
    Elsewhere None is returned, and nothing is written.
    """
    sources = local_tensors(array, group.num_local_replicas)
    target = sources[0] if out is None else out
    check_like(target, sources[0])
    code_of(target.dtype)
    reduction = _reduction_of(op, sources)
    owner, _ = group.owner_of(root)
    if group.rank == owner:
        check_written(target)
    return lambda carrier: carrier.reduce(sources, target, reduction, owner)


@collective(TORCH)
def reduce_scatter(
    group: Group, source: TensorArray, out: Tensor, op: str = "sum"
) -> Action:
    """Give each replica its part of the reduction, in `out`, and return that.

    Each replica's tensor has as many equal parts as the group has replicas; replica r
    gets the r-th part. `out` holds the parts of all local replicas, and may be part of
    the source.
    """
    sources = local_tensors(source, group.num_local_replicas)
    check_written(out)
    first, local, total = sources[0], group.num_local_replicas, group.num_replicas
    if out.dtype != first.dtype or out.numel() * total != first.numel() * local:
        raise ValueError(
            f"out has {out.numel()} elements of {out.dtype}, but the {local} of "
            f"{total} replicas here get equal parts of {first.numel()} of "
            f"{first.dtype}."
        )
    code_of(first.dtype)
    reduction = _reduction_of(op, sources)

    def action(carrier: ArrayTransport[Tensor]) -> Tensor:
        carrier.reduce_scatter(sources, [out], reduction)
        return out

    return action


def _local_pairs(
    arrays: Sequence[TensorArray], results: Sequence[TensorArray], replicas: int
) -> list[tuple[Sequence[Tensor], Sequence[Tensor]]]:
    """Return the local replicas' tensors and the result's tensors of each array.

    Raises:
        TypeError: One has no dtype that can be reduced.
        ValueError: They do not belong together.
    """
    if len(results) != len(arrays):
        raise ValueError(
            f"{len(arrays)} arrays are given, but {len(results)} to write to. "
            "Give one for each."
        )
    pairs = []
    for array, result in zip(arrays, results, strict=True):
        sources = local_tensors(array, replicas)
        targets = sources if result is array else local_tensors(result, replicas)
        check_like(targets[0], sources[0])
        check_written(*targets)
        code_of(sources[0].dtype)
        pairs.append((sources, targets))
    return pairs


def _reduction_of(op: str, tensors: Sequence[Tensor]) -> int:
    reduction = REDUCTIONS.get(op)
    if reduction is None:
        raise ValueError(
            f"The reduction is {op!r}, but must be {', '.join(REDUCTIONS)}."
        )
    if op == "mean" and any(tensor.dtype is torch.bool for tensor in tensors):
        raise TypeError(
            "The mean of bool would not be a bool, so the engine makes none. Ask for "
            "sum, min, max or prod, or convert the tensor first."
        )
    return reduction
