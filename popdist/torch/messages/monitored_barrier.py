"""A barrier in which member 0 finds out which members do not come."""

from collections.abc import Sequence
from time import monotonic

import torch
import torch.distributed as dist

from popdist.errors import PopdistError
from popdist.torch.messages.channels import Channels, Message

# No tag of a program's: those are 0 or more.
_COME_TAG, _GO_TAG = -11, -12


def meet_monitored(
    channels: Channels, rank: int, ranks: Sequence[int], limit: float, wait_all: bool
) -> None:
    """Return when all members have come.

    Args:
        channels: Those of this member.
        rank: This member; 0 waits for all others, and each of those for it.
        ranks: What the members are called in errors.
        limit: For how many seconds to wait.
        wait_all: Whether member 0 names all members that have not come, not the first.

    Raises:
        DistBackendError: Some do not come in time.
    """
    if rank:
        _report(channels, rank, ranks, limit)
    else:
        _collect(channels, ranks, limit, wait_all)


def _report(channels: Channels, rank: int, ranks: Sequence[int], limit: float) -> None:
    """Let member 0 know that this one has come, and wait until that lets it go on."""
    note, cause = torch.zeros(1), None
    channels.send(note, 0, _COME_TAG)
    try:
        if channels.receive(note, 0, _GO_TAG).is_done_in(limit):
            return
        why = f"it did not let this one go on in {_milliseconds(limit)}: one is late."
    except PopdistError as error:
        why, cause = str(error), error
    raise dist.DistBackendError(
        f"popdist: Rank {ranks[rank]} successfully reached monitoredBarrier, but "
        f"received errors while waiting for send/recv from rank {ranks[0]}: {why}"
    ) from cause


def _collect(
    channels: Channels, ranks: Sequence[int], limit: float, wait_all: bool
) -> None:
    """Wait until all others have come, and let them go on."""
    note, deadline = torch.zeros(1), monotonic() + limit
    coming = [channels.receive(note, i, _COME_TAG) for i in range(1, len(ranks))]
    late: list[int] = []
    for i, message in enumerate(coming, 1):
        if not _has_come(message, deadline):
            late.append(ranks[i])
            if not wait_all:
                break
    if late:
        out_of_time = f"Rank {ranks[0]} timed out in monitoredBarrier: " * (not limit)
        named = ", ".join(map(str, late))
        raise dist.DistBackendError(
            f"popdist: {out_of_time}{'Ranks' if wait_all else 'Rank'} {named} failed "
            f"to pass monitoredBarrier in {_milliseconds(limit)}."
        )
    for i in range(1, len(ranks)):
        channels.send(torch.zeros(1), i, _GO_TAG).is_done_in(limit)


def _has_come(message: Message, deadline: float) -> bool:
    try:
        return message.is_done_in(max(deadline - monotonic(), 0.001))
    except PopdistError:
        # It has ended, or left the group.
        return False


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"
