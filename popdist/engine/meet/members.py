"""The members that are to meet: their names, and how their ends are detected."""

import os
import select
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from popdist.engine.meet.connection import Connection
from popdist.engine.meet.pidfds import process_of
from popdist.errors import ArenaError, MismatchError, PeerLostError

# Up to so many consecutive instances are named one by one, more as a range.
_MOST_IN_A_LIST = 3
# How many seconds pass between two looks into the file of ended instances.
_LOOK = 0.2


class Roster(NamedTuple):
    """The members of a group that is about to meet, by their ranks.

    instances: The number of each, for errors and reports.
    pidfds: A pidfd of each, readable once the process has ended; -1 where no pidfd is
        known before the meeting.
    ended_file: The launcher appends the numbers of ended instances to this file, one
        to a line; empty where the launcher does not.
    """

    instances: Sequence[int]
    pidfds: Sequence[int]
    ended_file: str = ""

    def name(self, ranks: Sequence[int]) -> str:
        """Return the names of these members, for a sentence."""
        return name_instances([self.instances[rank] for rank in ranks])

    def name_all(self) -> str:
        return name_instances(self.instances)

    def objection(self, rank: int, pid: int) -> str | None:
        """Return why a process is not this member, if the member's own is known."""
        known = self.pidfds[rank] if rank < len(self.pidfds) else -1
        real = (process_of(known) or 0) if known >= 0 else 0
        if real <= 0 or pid <= 0 or real == pid:
            return None
        return (
            f"Process {pid} says that it is {self.name([rank])}, but that is process "
            f"{real}. A process that an instance starts takes no part in its "
            "collectives: make the calls in the instance itself."
        )

    def other_user(self, rank: int | None, other: Connection, me: int) -> ArenaError:
        """Return the error for a member that is another user's process."""
        return ArenaError(
            f"{self._sender(rank, other, 'A process')} belongs to user {other.uid}, "
            f"but {self.name([me])} to user {os.geteuid()}. Start all instances as the "
            "same user."
        )

    def malformed(
        self, rank: int | None, other: Connection, me: int, what: str
    ) -> MismatchError:
        """Return the error for a message that members do not send each other."""
        return MismatchError(
            f"{self._sender(rank, other, 'A member')} sent {self.name([me])} {what} "
            "while the instances met, which is not a valid message. Start all of them "
            "with the same installation of popdist."
        )

    def _sender(self, rank: int | None, other: Connection, unknown: str) -> str:
        who = unknown
        if rank is not None and rank < len(self.instances):
            who = self.name([rank]).capitalize()
        return f"{who} (process {other.pid})"

    def wait(self, left: float) -> float:
        """Return after how many seconds, `left` at most, to check once more."""
        return min(left, _LOOK) if self.ended_file else left

    def check(self) -> None:
        """Raise PeerLostError if a pidfd shows that its member has ended."""
        poll = select.poll()
        for pidfd in self.pidfds:
            if pidfd >= 0:
                poll.register(pidfd, select.POLLIN)
        ready = {pidfd for pidfd, _ in poll.poll(0)}
        self._raise_for(rank for rank, fd in enumerate(self.pidfds) if fd in ready)

    def check_file(self) -> None:
        """Raise PeerLostError if members are in the launcher's file of ended ones."""
        ended = read_ended(self.ended_file)
        self._raise_for(r for r, one in enumerate(self.instances) if one in ended)

    def _raise_for(self, ranks: Iterable[int]) -> None:
        if ended := list(ranks):
            they, their = ("it", "its") if len(ended) == 1 else ("they", "their")
            raise PeerLostError(
                f"{self.name(ended).capitalize()} ended before {they} could join the "
                f"group of {self.name_all()}. Look above for {their} last output.",
                [self.instances[rank] for rank in ended],
            )


def read_ended(path: str) -> set[int]:
    """Return the instances that have ended, by the launcher's file of them."""
    # Out of reach for an instance in a container or of another user: then it waits as
    # it does where the launcher tells nothing.
    with suppress(OSError), open(path, "rb") as file:
        return {int(line) for line in file if line.strip().isdigit()}
    return set()


def name_instances(instances: Sequence[int]) -> str:
    """Return `instance 1` or `instances 1, 2 and 4 to 9`, for a sentence."""
    *most, last = _runs(instances)
    if most:
        return f"instances {', '.join(most)} and {last}"
    return f"instance{'s' if len(instances) > 1 else ''} {last}"


def _runs(instances: Sequence[int]) -> list[str]:
    runs: list[list[int]] = []
    for instance in instances:
        if runs and runs[-1][-1] + 1 == instance:
            runs[-1].append(instance)
        else:
            runs.append([instance])
    parts: list[str] = []
    for run in runs:
        if len(run) > _MOST_IN_A_LIST:
            parts.append(f"{run[0]} to {run[-1]}")
        else:
            parts += map(str, run)
    return parts
