"""The operations of an engine group that gather torch tensors, or scatter them."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from popdist.engine.group import Group
from popdist.engine.handle import AsyncOp
from popdist.engine.rows import Copy, Rows, copy_results, destination_of
from popdist.engine.spec.operations import Operation, number_of
from popdist.torch.tensors.tensor_rows import (
    TORCH,
    bytes_of,
    check,
    check_written,
    readable,
)
from popdist.torch.tensors.within import Within

# The number of a dtype in what members tell each other of a tensor.
_DTYPES = sorted(
    (value for value in vars(torch).values() if isinstance(value, torch.dtype)), key=str
)
_MOST_AXES = 14


def all_gather(
    group: Group | Within,
    source: Tensor,
    out: Tensor | Sequence[Tensor],
    *,
    async_op: AsyncOp = False,
    name: str | None = None,
) -> Any:
    """Gather every member's tensor in `out`, and return that.

    Args:
        out: A tensor with as many elements as all of the sources, or a list of a
            tensor for each member; sizes may differ. The source may be its part.
    """
    lengths = _check_parts(group, source, out)
    check_written(*([out] if isinstance(out, Tensor) else out))
    number = number_of(name)

    def action() -> Any:
        own = bytes_of(readable(source))
        target, copies = _destination_of_parts(out, own, group.rank)
        group.transport.all_gather(own, target, lengths, name=number)
        copy_results(TORCH, copies)
        return out

    return group.submit("all_gather", action, async_op)


def gather(
    group: Group | Within,
    source: Tensor,
    out: Tensor | Sequence[Tensor] | None,
    root: int = 0,
    *,
    async_op: AsyncOp = False,
    name: str | None = None,
) -> Any:
    """Gather every member's tensor in `out` of member `root`, and return it there.

    All tensors have the same size. Elsewhere `out` is None, and the function returns
    None.
    """
    check(source)
    owner, number = group.owner_of(root)[0], number_of(name)
    lengths = [source.nbytes] * group.size
    if group.rank == owner:
        outs = [out] if isinstance(out, Tensor) else out or ()
        lengths = _check_parts(group, source, () if out is None else out)
        check_written(*outs)

    def action() -> Any:
        own = bytes_of(readable(source))
        if group.rank != owner or out is None:
            nothing = bytes_of(torch.empty(0))
            group.transport.gather(own, nothing, lengths, owner, name=number)
            return None
        target, copies = _destination_of_parts(out, own, group.rank)
        group.transport.gather(own, target, lengths, owner, name=number)
        copy_results(TORCH, copies)
        return out

    return group.submit("gather", action, async_op)


def scatter(
    group: Group | Within,
    source: Tensor | Sequence[Tensor] | None,
    out: Tensor,
    root: int = 0,
    *,
    async_op: AsyncOp = False,
    name: str | None = None,
) -> Any:
    """Give each member its part of member `root`'s source in `out`, and return `out`.

    The source is None elsewhere. All parts have the same size.
    """
    check_written(out)
    owner, number = group.owner_of(root)[0], number_of(name)
    lengths = [out.nbytes] * group.size
    if group.rank == owner:
        lengths = _check_parts(group, out, () if source is None else source)

    def action() -> Tensor:
        joined = None
        if group.rank == owner and source is not None:
            joined = bytes_of(_joined(source))
        part, copies = destination_of(TORCH, [out], joined)
        group.transport.scatter(joined or part, part, lengths, owner, name=number)
        copy_results(TORCH, copies)
        return out

    return group.submit("scatter", action, async_op)


def all_gather_varied(
    group: Group | Within,
    tensor: Tensor,
    *,
    async_op: AsyncOp = False,
    name: str | None = None,
) -> Any:
    """Return a list of new tensors: every member's, whatever its shape and dtype."""
    check(tensor)
    number = number_of(name)
    if tensor.dim() > _MOST_AXES:
        raise ValueError(
            f"The tensor has {tensor.dim()} axes, but can have at most {_MOST_AXES}."
        )

    def action() -> list[Tensor]:
        lengths = [*tensor.shape, *[0] * (_MOST_AXES - tensor.dim())]
        numbers = torch.tensor([_DTYPES.index(tensor.dtype), tensor.dim(), *lengths])
        headers = gathered_numbers(group, numbers, Operation.ALL_GATHER, number)
        outs = [
            torch.empty(lengths[:axes], dtype=_DTYPES[code])
            for code, axes, *lengths in headers.tolist()
        ]
        own = bytes_of(readable(tensor))
        target, copies = _destination_of_parts(outs, own, group.rank)
        sizes = [out.nbytes for out in outs]
        group.transport.all_gather(own, target, sizes, name=number)
        copy_results(TORCH, copies)
        return outs

    return group.submit("all_gather", action, async_op)


def gathered_numbers(
    group: Group | Within, numbers: Tensor, follows: Operation, name: int
) -> Tensor:
    """Return a row of whole numbers from each member."""
    rows = torch.empty((group.size, len(numbers)), dtype=torch.int64)
    group.transport.all_gather(
        bytes_of(numbers),
        bytes_of(rows),
        [numbers.nbytes] * group.size,
        name=name,
        prelude_to=follows,
    )
    return rows


def _destination_of_parts(
    out: Tensor | Sequence[Tensor], own: Rows, rank: int
) -> tuple[Rows, Sequence[Copy[Tensor]]]:
    """Return the row for a gather's result, and the copies to make at the end.

    This member's part of it may be where its own tensor lies already.
    """
    if isinstance(out, Tensor):
        outs, own_begin = [out], own.nbytes * rank
    else:
        outs, own_begin = list(out), sum(part.nbytes for part in out[:rank])
    return destination_of(TORCH, outs, own, own_begin=own_begin)


def _joined(source: Tensor | Sequence[Tensor]) -> Tensor:
    if isinstance(source, Tensor):
        return readable(source)
    return torch.cat([readable(part).view(-1) for part in source])


def _check_parts(
    group: Group | Within, one: Tensor, parts: Tensor | Sequence[Tensor]
) -> list[int]:
    """Return the bytes of each member's part in a gather or scatter.

    Raises:
        ValueError: There is not a part for each member, or this member's part does not
            match `one`.
    """
    check(one)
    if isinstance(parts, Tensor):
        check(parts)
        if (parts.numel(), parts.dtype) != (one.numel() * group.size, one.dtype):
            raise ValueError(
                f"The whole has {parts.numel()} elements of {parts.dtype}, but "
                f"{group.size} parts of {one.numel()} of {one.dtype} make it."
            )
        return [one.nbytes] * group.size
    check(*parts)
    if len(parts) != group.size:
        raise ValueError(
            f"{len(parts)} tensors are given, but the group has {group.size} members. "
            "Give one for each."
        )
    own = parts[group.rank]
    if own.numel() != one.numel() or own.dtype != one.dtype:
        raise ValueError(
            f"This member's part has {own.numel()} elements of {own.dtype}, but its "
            f"tensor has {one.numel()} of {one.dtype}."
        )
    return [part.nbytes for part in parts]
