"""A barrier in which member 0 detects the missing members."""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from time import monotonic

import torch
import torch.distributed as dist

from popdist.engine.handle import Handle
from popdist.errors import PopdistError
from popdist.torch.channels import Channels, Message

# Member 0 sends this to the others if no member is missing.
_GO = -1


class MonitoredBarrier:
    """One of the monitored barriers of a process group, as a member sees it."""

    def __init__(self, channels: Channels, number: int, limit: float) -> None:
        """Prepare a barrier.

        Args:
            channels: This member's channels.
            number: The number of this barrier in the group, from 1: a late message for
                a failed barrier does not count for the next one.
            limit: For how many seconds to wait.
        """
        self._channels, self._ranks, self._limit = channels, channels.ranks, limit
        # The tags of the messages from a member that is in the barrier to member 0, and
        # of the answer. Programs' tags are different: 0 or more.
        self._arrival, self._answer = -2 * number, -2 * number - 1

    def report(self) -> None:
        """Tell member 0 that this one is in the barrier, and wait for its answer.

        Raises:
            DistBackendError: The answer is late, or that others are; or it has ended.
        """
        self._channels.send(torch.zeros(1), 0, self._arrival)
        missing = torch.full((1,), _GO)
        cause = None
        try:
            answer = self._channels.receive(missing, 0, self._answer)
            # A little longer than member 0 waits, which knows more.
            if answer.is_done_in(self._limit + min(self._limit / 4, 1)):
                answer.result()
                if missing == _GO:
                    return
                why = f"it gave up, because rank {missing.item()} has not come."
            else:
                why = f"it did not let this one go on in {self._time()}: one is late."
        except PopdistError as error:
            why, cause = str(error), error
        raise _failure(
            f"Rank {self._ranks[self._channels.rank]} successfully reached "
            "monitoredBarrier, but received errors while waiting for send/recv from "
            f"rank {self._ranks[0]}: {why}"
        ) from cause

    def collect(self, wait_all: bool) -> None:
        """Wait, in member 0, until all others are in the barrier, and let them go on.

        Args:
            wait_all: Whether to name all members that are missing, not only the first.

        Raises:
            DistBackendError: Some are not in time, or have ended.
        """
        channels, deadline = self._channels, monotonic() + self._limit
        others = range(1, len(self._ranks))
        arrivals = [channels.receive(torch.zeros(1), i, self._arrival) for i in others]
        late: list[int] = []
        for rank, arrival in zip(self._ranks[1:], arrivals, strict=True):
            if not _is_through(arrival, deadline):
                late.append(rank)
                if not wait_all:
                    break
        if late:
            for member, arrival in enumerate(arrivals, 1):
                # The missing ones wait for an answer once they are in the barrier.
                arrival.add_done_callback(partial(self._refuse, member, late[0]))
            prefix = f"Rank {self._ranks[0]} timed out in monitoredBarrier: "
            raise _failure(
                f"{'' if self._limit else prefix}{_list(late, wait_all)} failed to "
                f"pass monitoredBarrier in {self._time()}."
            )
        go = torch.full((1,), _GO)
        answers = [channels.send(go, i, self._answer) for i in others]
        lost = [
            rank
            for rank, answer in zip(self._ranks[1:], answers, strict=True)
            if not _is_through(answer, deadline) and answer.test()
        ]
        if lost:
            raise _failure(
                f"{_list(lost, wait_all)} ended in monitoredBarrier. Look above for "
                "the last output."
            )

    def _refuse(self, member: int, missing: int, arrival: Handle[int]) -> None:
        """Tell a member in the barrier that another one is missing."""
        # It may have ended, or this member may have left the group meanwhile.
        with suppress(PopdistError):
            arrival.result()
            self._channels.send(torch.full((1,), missing), member, self._answer)

    def _time(self) -> str:
        return f"{self._limit * 1000:.0f} ms"


def _is_through(message: Message, deadline: float) -> bool:
    """Return whether a message goes through in time, and its peer has not ended."""
    try:
        in_time = message.is_done_in(max(deadline - monotonic(), 0.001))
        return in_time and message.result() is not None
    except PopdistError:
        return False


def _failure(why: str) -> dist.DistBackendError:
    return dist.DistBackendError(f"popdist: {why}")


def _list(ranks: Sequence[int], all_of_them: bool) -> str:
    return f"{'Ranks' if all_of_them else 'Rank'} {', '.join(map(str, ranks))}"
