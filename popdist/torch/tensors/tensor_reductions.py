"""The reductions of an engine group on torch tensors."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from popdist.engine.group import Group
from popdist.engine.handle import AsyncOp
from popdist.engine.rows import copy_results, destination_of, pairs_of
from popdist.engine.spec.dtypes import REDUCTIONS
from popdist.engine.spec.operations import algorithm_code_of, number_of
from popdist.engine.transport import all_reduce_arrays
from popdist.torch.tensors.tensor_rows import (
    CODES,
    TORCH,
    TensorArray,
    check_like,
    check_written,
    code_of,
    local_tensors,
    readable,
    rows_of,
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
    results = arrays if out is None else out
    pairs = _local_pairs(arrays, results, group.num_local_replicas)
    reduction = _reduction_of(op, [sources[0] for sources, _ in pairs])
    how, number = algorithm_code_of(algorithm), number_of(name)

    def action() -> list[TensorArray]:
        all_reduce_arrays(
            group.transport, TORCH, pairs, reduction, algorithm=how, name=number
        )
        return list(results)

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
    if out is not None:
        check_like(out, sources[0])
    code_of(target.dtype)
    reduction, number = _reduction_of(op, sources), number_of(name)
    targets = sources if out is None and len(sources) == 1 else [target]
    owner, _ = group.owner_of(root)
    if group.rank == owner:
        check_written(target)

    def action() -> Tensor | None:
        results = targets if group.rank == owner else [torch.empty_like(target)]
        (pair,), copies = pairs_of(TORCH, [(sources, results)])
        group.transport.reduce(*pair, reduction, owner, name=number)
        copy_results(TORCH, copies)
        return target if group.rank == owner else None

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
    first, local, total = sources[0], group.num_local_replicas, group.num_replicas
    if out.dtype != first.dtype or out.numel() * total != first.numel() * local:
        raise ValueError(
            f"out has {out.numel()} elements of {out.dtype}, but the {local} of "
            f"{total} replicas here get equal parts of {first.numel()} of "
            f"{first.dtype}."
        )
    code, reduction = code_of(first.dtype), _reduction_of(op, sources)
    number = number_of(name)

    def action() -> Tensor:
        rows = rows_of([readable(tensor) for tensor in sources], code)
        target, copies = destination_of(TORCH, [out], rows, code)
        group.transport.reduce_scatter(rows, target, reduction, name=number)
        copy_results(TORCH, copies)
        return out

    return group.submit("reduce_scatter", action, async_op)


def reduce_in_place(group: Group, tensor: Tensor, reduction: int) -> bool:
    """All-reduce one tensor in place, if that takes no preparation.

    Args:
        reduction: The engine's code; not the mean's for bools.

    Returns:
        Whether the tensor was reduced. If not, nothing was done: call all_reduce().
    """
    code = _code_in_place(tensor)
    return code is not None and group.all_reduce_at(
        tensor.data_ptr(), tensor.numel(), code, reduction
    )


def _code_in_place(tensor: Tensor) -> int | None:
    """Return the engine's code for a tensor that it can reduce in place, or None."""
    if not tensor.is_cpu or not tensor.is_contiguous() or tensor.is_neg():
        return None
    return CODES.get(tensor.dtype)


def _is_reduced_now(group: Group | Within, array: TensorArray, op: str) -> bool:
    """Reduce an array, if it is one tensor that takes no preparation."""
    if not (
        isinstance(group, Group) and isinstance(array, Tensor) and op in REDUCTIONS
    ):
        return False
    if op == "mean" and array.dtype is torch.bool:
        return False
    return reduce_in_place(group, array, REDUCTIONS[op])


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
