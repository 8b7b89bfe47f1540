"""A barrier in which member 0 finds out which members do not come."""

from collections.abc import Sequence
from time import monotonic

import torch
import torch.distributed as dist

from popdist.torch.messages.channels import Channels

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
    note, deadline = torch.zeros(1), monotonic() + limit
    if rank:
        channels.send(note, 0, _COME_TAG)
        if not channels.receive(note, 0, _GO_TAG).is_done_in(limit):
            raise dist.DistBackendError(
                f"popdist: Rank {ranks[rank]} reached monitoredBarrier, but rank "
                f"{ranks[0]} did not let it go on in {limit * 1000:.0f} ms: another "
                "rank is late."
            )
        return
    coming = [channels.receive(note, i, _COME_TAG) for i in range(1, len(ranks))]
    late = []
    for i, message in enumerate(coming, 1):
        if not message.is_done_in(max(deadline - monotonic(), 0.001)):
            late.append(ranks[i])
            if not wait_all:
                break
    if late:
        named = ", ".join(map(str, late))
        raise dist.DistBackendError(
            f"popdist: {'Ranks' if wait_all else 'Rank'} {named} failed to pass "
            f"monitoredBarrier in {limit * 1000:.0f} ms."
        )
    for i in range(1, len(ranks)):
        channels.send(torch.zeros(1), i, _GO_TAG).is_done_in(limit)
