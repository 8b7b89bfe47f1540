"""The members that are to meet: their names, and how their ends are detected."""

import select
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import compress
from types import MappingProxyType
from typing import NamedTuple

from popdist.engine.meet.connection import Connection
from popdist.engine.meet.deadlines import Deadline
from popdist.engine.meet.group_name import GroupName
from popdist.engine.meet.pidfds import Pidfd, process_of
from popdist.errors import MismatchError, PeerLostError, PopdistError

# Up to so many consecutive instances are named one by one, more as a range.
_MOST_IN_A_LIST = 3
# How many seconds pass between two looks into the file of ended instances, and calls of
# why_over().
_LOOK = 0.2


class Meeting(NamedTuple):
    """The members of a group that is about to meet, as one of them sees them.

    name: The same on all members, and unique among groups. Only a joiner may look its
        name up by a function.
    rank: This member.
    instances: The numbers of the members in errors, by rank.
    timeout: For how many seconds members wait for the others, to meet and in calls.
    stall: After how many seconds the member that they wait for is named.
    known: A pidfd of each instance that this process knows from another group. The end
        of one of these is noticed even before it has connected.
    ended_file: The launcher appends the numbers of ended instances to this file, one
        to a line; empty where the launcher does not.
    why_over: Returns the error if no members of the job can meet any more.
        It is called as often as the file is read.
    """

    name: GroupName
    rank: int
    instances: Sequence[int]
    timeout: float = 1800.0
    stall: float = 60.0
    known: Mapping[int, Pidfd] = MappingProxyType({})
    ended_file: str = ""
    why_over: Callable[[], PopdistError | None] = lambda: None

    @property
    def size(self) -> int:
        return len(self.instances)

    @property
    def own_name(self) -> str:
        """The name of this member, as the beginning of a sentence."""
        return self.name_of([self.rank]).capitalize()

    def name_of(self, ranks: Sequence[int]) -> str:
        """Return the names of these members, for a sentence."""
        return name_instances([self.instances[rank] for rank in ranks])

    def name_all(self) -> str:
        return name_instances(self.instances)

    def deadline(self) -> Deadline:
        """Return the deadline for all waits of this member, which begin now."""
        return Deadline(
            self.own_name,
            f"the group of {self.name_all()}",
            timeout=self.timeout,
            stall=self.stall,
            behind=self.rank > 0,
        )

    def pidfds(self) -> dict[int, int]:
        """Return the pidfds of other members that are known, with their ranks."""
        return {
            self.known[instance].fileno(): rank
            for rank, instance in enumerate(self.instances)
            if rank != self.rank and instance in self.known
        }

    def objection(self, rank: int, pid: int) -> str | None:
        """Return why a process is not this member, if the member's own is known."""
        ranks = self.pidfds()
        real = next((process_of(fd) or 0 for fd in ranks if ranks[fd] == rank), 0)
        if real <= 0 or pid <= 0 or real == pid:
            return None
        return (
            f"Process {pid} says that it is {self.name_of([rank])}, but that is "
            f"process {real}. A process that an instance starts takes no part in its "
            "collectives: make the calls in the instance itself."
        )

    def malformed(self, sender: Connection, packet: bytes) -> MismatchError:
        """Return the error for a message that members do not send each other."""
        rank = sender.rank
        who = "A member" if rank is None else self.name_of([rank]).capitalize()
        return MismatchError(
            f"{who} (process {sender.pid}) sent {self.own_name.lower()} "
            f"{packet[:40]!r} while the instances met, which is not a valid message. "
            "Start all of them with the same installation of popdist."
        )

    def wait(self, left: float) -> float:
        """Return after how many seconds, `left` at most, to check once more."""
        return min(left, _LOOK)

    def check(self) -> None:
        """Raise PeerLostError if a pidfd shows that its member has ended."""
        ranks = self.pidfds()
        poll = select.poll()
        for pidfd in ranks:
            poll.register(pidfd, select.POLLIN)
        # The process has ended, or the program has closed the descriptor.
        changed = sorted(ranks[pidfd] for pidfd, _ in poll.poll(0))
        has_ended = [self.known[self.instances[rank]].has_ended for rank in changed]
        self._raise_for(list(compress(changed, has_ended)))

    def check_file(self) -> None:
        """Raise PeerLostError if members are in the launcher's file of ended ones.

        Raise the error of why_over(), if there is one.
        """
        error = self.why_over()
        if error is not None:
            raise error
        ended = read_ended(self.ended_file)
        self._raise_for([r for r, one in enumerate(self.instances) if one in ended])

    def _raise_for(self, ended: Sequence[int]) -> None:
        if ended:
            they, their = ("it", "its") if len(ended) == 1 else ("they", "their")
            raise PeerLostError(
                f"{self.name_of(ended).capitalize()} ended before {they} could join "
                f"the group of {self.name_all()}. Look above for {their} last output.",
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
    names: list[str] = []
    for run in runs:
        if len(run) > _MOST_IN_A_LIST:
            names.append(f"{run[0]} to {run[-1]}")
        else:
            names += map(str, run)
    return names
