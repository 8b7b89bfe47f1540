"""The reductions of an engine group on torch tensors."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from popdist.engine.group import Group
from popdist.engine.handle import AsyncOp
from popdist.engine.spec.dtypes import REDUCTIONS
from popdist.engine.spec.operations import CHOICES, number_of
from popdist.engine.transport import Pair
from popdist.torch.tensors.plain_reductions import reduce_in_place
from popdist.torch.tensors.tensor_rows import (
    TensorArray,
    check_like,
    check_written,
    code_of,
    copy_result,
    is_writable,
    local_tensors,
    overlap,
    overlapping,
    readable,
    rows_of,
    scratch,
)
from popdist.torch.tensors.within import Within


def all_reduce(
    group: Group | Within,
    arrays: Sequence[TensorArray],
    op: str = "sum",
    *,
    out: Sequence[TensorArray] | None = None,
    algorithm: str = "auto",
    async_op: AsyncOp = False,
    name: str | None = None,
) -> Any:
    """Reduce several arrays as if they were one; return the list they were written to.

    Args:
        arrays: Tensors; in a group with replicas, lists of a tensor for each local
            replica. Dtypes may differ: there is a call for each.
        out: Where the results are written: as `arrays`, which is the default. An array
            may be given several times, as tied weights are.
    """
    if (
        out is None
        and len(arrays) == 1
        and algorithm == "auto"
        and not (async_op or name)
        and _is_reduced_now(group, arrays[0], op)
    ):
        return list(arrays)
    replicas = group.num_local_replicas
    targets_given = arrays if out is None else out
    if len(targets_given) != len(arrays):
        raise ValueError(
            f"{len(arrays)} arrays are given, but {len(targets_given)} to write to. "
            "Give one for each."
        )
    sources = [local_tensors(array, replicas) for array in arrays]
    targets = sources
    if out is not None:
        targets = [local_tensors(array, replicas) for array in out]
        for one, other in zip(sources, targets, strict=True):
            check_like(other[0], one[0])
    for tensors in targets:
        check_written(*tensors)
    reduction = _reduction_of(op, [tensors[0] for tensors in sources])
    batches: dict[int, list[int]] = {}
    for index, tensors in enumerate(sources):
        batches.setdefault(code_of(tensors[0].dtype), []).append(index)
    how, number = _choice(algorithm), number_of(name)

    def action() -> list[TensorArray]:
        several = len(sources) > 1 or replicas > 1 or out is not None
        apart = overlapping(sources, targets) if several else set()
        ready = [
            _Ready(sources[i], targets[i], i in apart) for i in range(len(sources))
        ]
        for code, indices in batches.items():
            group.transport.all_reduce(
                [ready[i].pair(code) for i in indices],
                reduction,
                algorithm=how,
                name=number,
            )
        for one in ready:
            one.finish()
        return list(targets_given)

    return group.submit("all_reduce", action, async_op)


def reduce(
    group: Group | Within,
    array: TensorArray,
    op: str = "sum",
    root: int = 0,
    *,
    out: Tensor | None = None,
    async_op: AsyncOp = False,
    name: str | None = None,
) -> Any:
    """Reduce all replicas' tensors where replica `root` lives; return the result there.

    It is written to `out`, by default over the first tensor of the root's member.
    Elsewhere None is returned, and nothing is written.
    """
    sources = local_tensors(array, group.num_local_replicas)
    target = sources[0] if out is None else out
    check_like(target, sources[0])
    code, reduction = code_of(target.dtype), _reduction_of(op, sources)
    owner, number = group.owner_of(root)[0], number_of(name)
    if group.rank == owner:
        check_written(target)

    def action() -> Tensor | None:
        rows = [readable(source) for source in sources]
        if group.rank == owner and is_writable(target) and len(sources) == 1:
            # The engine reads and writes one place, or two that are apart.
            same = target.data_ptr() == rows[0].data_ptr()
            apart = same or not overlap(target, rows[0])
            total = target if apart else torch.empty_like(rows[0])
        else:
            total = torch.empty_like(rows[0])
        group.transport.reduce(
            rows_of(rows, code), rows_of((total,), code), reduction, owner, name=number
        )
        if group.rank != owner:
            return None
        copy_result(total, target)
        return target

    return group.submit("reduce", action, async_op)


def reduce_scatter(
    group: Group | Within,
    source: TensorArray,
    out: Tensor,
    op: str = "sum",
    *,
    async_op: AsyncOp = False,
    name: str | None = None,
) -> Any:
    """Give each replica its part of the reduction, in `out`, and return that.

    Each replica's tensor has as many equal parts as the group has replicas; replica r
    gets the r-th part. `out` holds the parts of all local replicas, and may be part of
    the source.
    """
    sources = local_tensors(source, group.num_local_replicas)
    check_written(out)
    first, mine, total = sources[0], group.num_local_replicas, group.num_replicas
    if out.dtype != first.dtype or out.numel() * total != first.numel() * mine:
        raise ValueError(
            f"out has {out.numel()} elements of {out.dtype}, but the {mine} of {total} "
            f"replicas here get equal parts of {first.numel()} of {first.dtype}."
        )
    code, reduction = code_of(first.dtype), _reduction_of(op, sources)
    number = number_of(name)

    def action() -> Tensor:
        rows = [readable(tensor) for tensor in sources]
        part = scratch(out, rows)
        group.transport.reduce_scatter(
            rows_of(rows, code), rows_of((part,), code), reduction, name=number
        )
        copy_result(part, out)
        return out

    return group.submit("reduce_scatter", action, async_op)


def _is_reduced_now(group: Group | Within, array: TensorArray, op: str) -> bool:
    """Reduce an array, if it is one tensor that takes no preparation."""
    if not (
        isinstance(group, Group) and isinstance(array, Tensor) and op in REDUCTIONS
    ):
        return False
    if op == "mean" and array.dtype is torch.bool:
        return False
    return reduce_in_place(group, array, REDUCTIONS[op])


class _Ready:
    """One array of a reduction, its rows in memory as the engine takes them."""

    def __init__(
        self, sources: Sequence[Tensor], targets: Sequence[Tensor], apart: bool
    ) -> None:
        self._targets = targets
        self._rows = [readable(tensor) for tensor in sources]
        if apart or not all(is_writable(tensor) for tensor in targets):
            self._written: Sequence[Tensor] = [
                torch.empty_like(row) for row in self._rows
            ]
        else:
            self._written = targets

    def pair(self, code: int) -> Pair:
        return rows_of(self._rows, code), rows_of(self._written, code)

    def finish(self) -> None:
        if self._written is not self._targets:
            for written, target in zip(self._written, self._targets, strict=True):
                copy_result(written, target)


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


def _choice(algorithm: str) -> int:
    how = CHOICES.get(algorithm)
    if how is None:
        raise ValueError(
            f"The algorithm is {algorithm!r}, but must be one of {', '.join(CHOICES)}."
        )
    return how
