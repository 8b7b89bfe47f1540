"""A barrier in which member 0 finds out which members do not come."""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import NamedTuple

import torch
import torch.distributed as dist

from popdist.engine.handle import Handle
from popdist.errors import PopdistError
from popdist.torch.channels import Channels, Message

# What member 0 sends to the others in place of the number of one that has not come.
_GO = -1


class MonitoredBarrier(NamedTuple):
    """One of the monitored barriers of a process group, as a member sees it.

    channels: Those of this member.
    rank: This member; 0 waits for all others, and each of those for it.
    ranks: What the members are called in errors.
    number: Which barrier of the group this is, from 1: what is late for one that has
        failed is not taken for the next one.
    limit: For how many seconds to wait.
    """

    channels: Channels
    rank: int
    ranks: Sequence[int]
    number: int
    limit: float

    # No tags of a program's: those are 0 or more.
    @property
    def come_tag(self) -> int:
        """The tag of what tells member 0 that another one has come."""
        return -2 * self.number

    @property
    def answer_tag(self) -> int:
        """The tag of what member 0 answers to it."""
        return -2 * self.number - 1


def meet_monitored(barrier: MonitoredBarrier, wait_all: bool) -> None:
    """Return when all members have come.

    Args:
        wait_all: Whether member 0 names all members that have not come, not the first.

    Raises:
        DistBackendError: Some do not come in time, or have ended.
    """
    if barrier.rank:
        _report(barrier)
    else:
        _collect(barrier, wait_all)


def _report(barrier: MonitoredBarrier) -> None:
    """Let member 0 know that this one has come, and wait until that lets it go on."""
    channels, limit = barrier.channels, barrier.limit
    channels.send(torch.zeros(1), 0, barrier.come_tag)
    missing = torch.full((1,), _GO)
    cause = None
    try:
        answer = channels.receive(missing, 0, barrier.answer_tag)
        # A little longer than member 0 waits, which knows more.
        if answer.is_done_in(limit + min(limit / 4, 1)):
            answer.result()
            if missing == _GO:
                return
            why = f"it gave up, because rank {missing.item()} has not come."
        else:
            late = _milliseconds(limit)
            why = f"it did not let this one go on in {late}: one is late."
    except PopdistError as error:
        why, cause = str(error), error
    raise dist.DistBackendError(
        f"popdist: Rank {barrier.ranks[barrier.rank]} successfully reached "
        "monitoredBarrier, but received errors while waiting for send/recv from rank "
        f"{barrier.ranks[0]}: {why}"
    ) from cause


def _collect(barrier: MonitoredBarrier, wait_all: bool) -> None:
    """Wait until all others have come, and let them go on."""
    channels, ranks, limit = barrier.channels, barrier.ranks, barrier.limit
    deadline, others = monotonic() + limit, range(1, len(ranks))
    coming = [channels.receive(torch.zeros(1), i, barrier.come_tag) for i in others]
    late: list[int] = []
    for i, message in enumerate(coming, 1):
        if not _is_through(message, deadline):
            late.append(ranks[i])
            if not wait_all:
                break
    if late:
        for i, message in enumerate(coming, 1):
            # Those that have not come wait for an answer only when they have.
            message.add_done_callback(partial(_refuse, barrier, i, late[0]))
        out_of_time = f"Rank {ranks[0]} timed out in monitoredBarrier: " * (not limit)
        raise _failure(
            f"{out_of_time}{_named(late, wait_all)} failed to pass monitoredBarrier in "
            f"{_milliseconds(limit)}."
        )
    go = torch.full((1,), _GO)
    going = [channels.send(go, i, barrier.answer_tag) for i in others]
    lost = [
        ranks[i]
        for i, message in enumerate(going, 1)
        if not _is_through(message, deadline) and message.test()
    ]
    if lost:
        raise _failure(
            f"{_named(lost, wait_all)} ended in monitoredBarrier. Look above for the "
            "last output."
        )


def _refuse(
    barrier: MonitoredBarrier, member: int, missing: int, message: Handle[int]
) -> None:
    """Tell a member that has come that another one has not."""
    # It may have ended, or this member may have left the group meanwhile.
    with suppress(PopdistError):
        message.result()
        answer = torch.full((1,), missing)
        barrier.channels.send(answer, member, barrier.answer_tag)


def _is_through(message: Message, deadline: float) -> bool:
    """Return whether a message goes through in time, and its peer has not ended."""
    try:
        in_time = message.is_done_in(max(deadline - monotonic(), 0.001))
        return in_time and message.result() is not None
    except PopdistError:
        return False


def _failure(why: str) -> dist.DistBackendError:
    return dist.DistBackendError(f"popdist: {why}")


def _named(ranks: Sequence[int], all_of_them: bool) -> str:
    return f"{'Ranks' if all_of_them else 'Rank'} {', '.join(map(str, ranks))}"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"
