"""The operations of an engine group that hand torch tensors on, of every dtype."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from popdist.engine.calls.array_transport import ArrayTransport, header_of
from popdist.engine.calls.collective import Action, collective
from popdist.engine.group import Group
from popdist.engine.spec.operations import Operation
from popdist.torch.tensors.tensor_rows import (
    TORCH,
    check,
    check_written,
    flat_bytes,
    parts_of,
    plain,
    readable,
)


@collective(TORCH)
def barrier(group: Group) -> Action:
    """Return when all members have called it."""
    return ArrayTransport.barrier


@collective(TORCH)
def broadcast(group: Group, tensors: Sequence[Tensor], root: int = 0) -> Action:
    """Overwrite tensors with member `root`'s tensors, and return the list of them."""
    owner, _ = group.owner_of(root)
    is_owner = group.rank == owner
    (check if is_owner else check_written)(*tensors)

    def action(carrier: ArrayTransport[Tensor]) -> list[Tensor]:
        for tensor in map(plain, tensors):
            source, targets = (tensor, ()) if is_owner else (None, [tensor])
            carrier.broadcast(source, targets, owner)
        return list(tensors)

    return action


@collective(TORCH)
def all_gather(group: Group, source: Tensor, out: Tensor | Sequence[Tensor]) -> Action:
    """Gather every member's tensor in `out`, and return that.

    Args:
        out: A tensor with as many elements as all of the sources, or a list of a
            tensor for each member; sizes may differ. The source may be its part.
    """
    return _gather(group, source, out, -1)


@collective(TORCH)
def gather(
    group: Group,
    source: Tensor,
    out: Tensor | Sequence[Tensor] | None,
    root: int = 0,
) -> Action:
    """Gather every member's tensor in `out` of member `root`, and return it there.

    All tensors have the same size. Elsewhere `out` is None, and the function returns
    None.
    """
    check(source)
    owner, _ = group.owner_of(root)
    if group.rank == owner:
        return _gather(group, source, () if out is None else out, owner)
    lengths = [source.nbytes] * group.size

    return lambda carrier: carrier.gather(source, (), lengths, owner)


@collective(TORCH, "all_gather")
def all_gather_varied(group: Group, tensor: Tensor) -> Action:
    """Return a list of new tensors: every member's, whatever its shape and dtype."""
    check(tensor)
    header = header_of(TORCH, tensor)
    counts = [1] * group.size

    def action(carrier: ArrayTransport[Tensor]) -> Any:
        given = Operation.ALL_GATHER, [readable(tensor)], [header], counts
        return carrier.gather_described(*given, None)

    return action


@collective(TORCH)
def scatter(
    group: Group, source: Tensor | Sequence[Tensor] | None, out: Tensor, root: int = 0
) -> Action:
    """Give each member its part of member `root`'s source in `out`, and return `out`.

    The source is None elsewhere. All parts have the same size.
    """
    check_written(out)
    owner, _ = group.owner_of(root)
    is_owner = group.rank == owner
    lengths = [out.nbytes] * group.size
    if is_owner:
        lengths = _check_parts(group, out, () if source is None else source)

    def action(carrier: ArrayTransport[Tensor]) -> Tensor:
        joined = None if source is None or not is_owner else _joined(source)
        carrier.scatter(joined, [out], lengths, owner)
        return out

    return action


@collective(TORCH)
def all_to_all(group: Group, source: Tensor, out: Tensor) -> Action:
    """Exchange equal parts in `out`, and return that: what member i has for j, j gets.

    The source has as many parts as the group has members, and may be `out`.
    """
    check(source)
    check_written(out)
    size, elements = group.size, source.numel()
    if elements % size or (out.numel(), out.dtype) != (elements, source.dtype):
        raise ValueError(
            f"The source has {source.numel()} elements of {source.dtype} and out "
            f"{out.numel()} of {out.dtype}, but both must have the same, in {size} "
            "equal parts."
        )

    def action(carrier: ArrayTransport[Tensor]) -> Tensor:
        carrier.all_to_all(parts_of(readable(source), size), [out])
        return out

    return action


@collective(TORCH, "all_to_all")
def all_to_all_parts(
    group: Group, sources: Sequence[Tensor], outs: Sequence[Tensor]
) -> Action:
    """Exchange parts of any sizes in `outs`, and return that.

    sources[j] goes to member j, and outs[i] gets what member i has for this one: it
    must have the same size.
    """
    check(*sources)
    check_written(*outs)
    size = group.size
    if (len(sources), len(outs)) != (size, size):
        raise ValueError(
            f"{len(sources)} tensors are given and {len(outs)} to write to, but both "
            f"must be {size}: one for each member."
        )

    def action(carrier: ArrayTransport[Tensor]) -> Sequence[Tensor]:
        own_sizes = [[part.nbytes for part in sources]]
        call = own_sizes, [1] * size, Operation.ALL_TO_ALL
        sizes = carrier.exchange_numbers(*call).tolist()
        for i, (out, row) in enumerate(zip(outs, sizes, strict=True)):
            if out.nbytes != row[group.rank]:
                raise ValueError(
                    f"out has {out.nbytes} bytes for what member {i} sends, but it "
                    f"sends {row[group.rank]}."
                )
        received = _exchanged(carrier, sources, max(map(max, sizes)))
        for out, part in zip(outs, received, strict=True):
            TORCH.copy_bytes(part, 0, out)
        return outs

    return action


def _exchanged(
    carrier: ArrayTransport[Tensor], sources: Sequence[Tensor], longest: int
) -> Tensor:
    """Return what all members have for this one, a row of `longest` bytes for each."""
    # Elements of the largest dtypes have 16 bytes.
    pitch = -(-longest // 16) * 16
    sent = torch.empty((len(sources), pitch), dtype=torch.uint8)
    for row, source in zip(sent, sources, strict=True):
        row[: source.nbytes] = flat_bytes(readable(source))
    received = torch.empty_like(sent)
    carrier.all_to_all(parts_of(sent, len(sources)), [received])
    return received


def _gather(
    group: Group, source: Tensor, out: Tensor | Sequence[Tensor], root: int
) -> Action:
    """Prepare a gather in `out` of this member, which is the root, or -1 for all."""
    lengths = _check_parts(group, source, out)
    targets = [out] if isinstance(out, Tensor) else out
    check_written(*targets)

    def action(carrier: ArrayTransport[Tensor]) -> Any:
        carrier.gather(source, targets, lengths, root)
        return out

    return action


def _joined(source: Tensor | Sequence[Tensor]) -> Tensor:
    if isinstance(source, Tensor):
        return readable(source)
    return torch.cat([readable(part).view(-1) for part in source])


def _check_parts(
    group: Group, one: Tensor, parts: Tensor | Sequence[Tensor]
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
