"""The operations of an engine group that hand torch tensors on, of every dtype."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from popdist.engine.group import Group
from popdist.engine.handle import AsyncOp
from popdist.engine.rows import copy_results, destination_of
from popdist.engine.spec.operations import Operation, number_of
from popdist.torch.tensors.tensor_gathers import gathered_numbers
from popdist.torch.tensors.tensor_rows import (
    TORCH,
    bytes_of,
    check,
    check_written,
    exchanged_row,
    flat_bytes,
    parts_of,
    readable,
)
from popdist.torch.tensors.within import Within


def broadcast(
    group: Group | Within,
    tensors: Sequence[Tensor],
    root: int = 0,
    *,
    async_op: AsyncOp = False,
    name: str | None = None,
) -> Any:
    """Overwrite tensors with member `root`'s tensors, and return the list of them."""
    owner, number = group.owner_of(root)[0], number_of(name)
    (check if group.rank == owner else check_written)(*tensors)

    def action() -> list[Tensor]:
        for tensor in tensors:
            row = readable(tensor)
            group.transport.broadcast(exchanged_row(row), owner, name=number)
            if group.rank != owner and row.data_ptr() != tensor.data_ptr():
                tensor.detach().copy_(row)
        return list(tensors)

    return group.submit("broadcast", action, async_op)


def all_to_all(
    group: Group | Within,
    source: Tensor,
    out: Tensor,
    *,
    async_op: AsyncOp = False,
    name: str | None = None,
) -> Any:
    """Exchange equal parts in `out`, and return that: what member i has for j, j gets.

    The source has as many parts as the group has members, and may be `out`.
    """
    check(source)
    check_written(out)
    size, number = group.size, number_of(name)
    if source.numel() % size or (out.numel(), out.dtype) != (
        source.numel(),
        source.dtype,
    ):
        raise ValueError(
            f"The source has {source.numel()} elements of {source.dtype} and out "
            f"{out.numel()} of {out.dtype}, but both must have the same, in {size} "
            "equal parts."
        )

    def action() -> Tensor:
        parts = parts_of(readable(source), size)
        target, copies = destination_of(TORCH, [out], parts)
        group.transport.all_to_all(parts, target, name=number)
        copy_results(TORCH, copies)
        return out

    return group.submit("all_to_all", action, async_op)


def all_to_all_parts(
    group: Group | Within,
    sources: Sequence[Tensor],
    outs: Sequence[Tensor],
    *,
    async_op: AsyncOp = False,
    name: str | None = None,
) -> Any:
    """Exchange parts of any sizes in `outs`, and return that.

    sources[j] goes to member j, and outs[i] gets what member i has for this one: it
    must have the same size.
    """
    check(*sources)
    check_written(*outs)
    size, number = group.size, number_of(name)
    if (len(sources), len(outs)) != (size, size):
        raise ValueError(
            f"{len(sources)} tensors are given and {len(outs)} to write to, but both "
            f"must be {size}: one for each member."
        )

    def action() -> Sequence[Tensor]:
        own_sizes = torch.tensor([part.nbytes for part in sources], dtype=torch.int64)
        sizes = gathered_numbers(group, own_sizes, Operation.ALL_TO_ALL, number)
        for i, out in enumerate(outs):
            if out.nbytes != int(sizes[i, group.rank]):
                raise ValueError(
                    f"out has {out.nbytes} bytes for what member {i} sends, but it "
                    f"sends {int(sizes[i, group.rank])}."
                )
        received = _exchanged(group, sources, int(sizes.max()), number)
        for out, row in zip(outs, received, strict=True):
            TORCH.copy_bytes(row, 0, out)
        return outs

    return group.submit("all_to_all", action, async_op)


def send(group: Group, tensor: Tensor, dest: int, *, async_op: AsyncOp = False) -> Any:
    """Send a tensor to one member, which must receive one of its size."""
    check(tensor)
    peer = group.peer_of("dest", dest)

    def action() -> None:
        group.transport.send(bytes_of(readable(tensor)), peer)

    return group.submit("send", action, async_op)


def receive(
    group: Group, out: Tensor, source: int, *, async_op: AsyncOp = False
) -> Any:
    """Fill `out` with the array that one member sends, and return it."""
    check_written(out)
    peer = group.peer_of("source", source)

    def action() -> Tensor:
        row, copies = destination_of(TORCH, [out])
        group.transport.receive(row, peer)
        copy_results(TORCH, copies)
        return out

    return group.submit("recv", action, async_op)


def barrier(
    group: Group | Within, *, async_op: AsyncOp = False, name: str | None = None
) -> Any:
    """Return when all members have called it."""
    number = number_of(name)
    return group.submit("barrier", lambda: group.transport.barrier(number), async_op)


def _exchanged(
    group: Group | Within, sources: Sequence[Tensor], longest: int, name: int
) -> Tensor:
    """Return what all members have for this one, a row of `longest` bytes for each."""
    # Elements of the largest dtypes have 16 bytes.
    pitch = -(-longest // 16) * 16
    sent = torch.empty((group.size, pitch), dtype=torch.uint8)
    for row, source in zip(sent, sources, strict=True):
        row[: source.nbytes] = flat_bytes(readable(source))
    received = torch.empty_like(sent)
    group.transport.all_to_all(
        parts_of(sent, group.size), bytes_of(received), name=name
    )
    return received
