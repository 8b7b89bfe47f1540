"""What carries rows between the members of a group, whatever arrays they come from.

A group turns arrays into rows and calls its transport; the transport knows addresses,
lengths and codes only.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from popdist.engine import _core
from popdist.engine.meet.group_name import GroupName
from popdist.engine.meet.pidfds import Pidfd
from popdist.engine.rows import A, Framework, Pair, Rows, copy_results, pairs_of
from popdist.engine.spec.operations import NO_PRELUDE, Operation, Trace
from popdist.errors import PopdistError


class Core(NamedTuple):
    """What a group's shortcuts for plain arrays need of the C core."""

    comm: _core.Comm
    split: _core.Split
    # Returns the error to raise for a shortcut that did not succeed.
    failure: Callable[[], PopdistError]


class Transport(Protocol):
    """One member's end of a group, and the operations of the group on rows.

    Each operation blocks until this member has its result, and is collective: all
    members make the same calls in the same order. `root` and other members are given by
    their index. `name` is the number of the call's name, 0 for none. Rows that are
    written either are the very rows that are read, or share no memory with them.

    Where members' arrays may differ, they are described first in a call of its own,
    whose `prelude_to` is the operation that follows.

    Raises PopdistError: the call did not succeed on all members, and ends the group.
    """

    @property
    def rank(self) -> int: ...
    @property
    def instances(self) -> tuple[int, ...]:
        """What the members are called in errors, by rank."""

    @property
    def replicas(self) -> tuple[int, ...]:
        """How many rows each member has."""

    @property
    def core(self) -> Core | None:
        """The C core, which makes some calls without a detour; None without one."""

    @property
    def pidfds(self) -> dict[int, Pidfd]:
        """A pidfd of each other instance of this host, by what it is called."""

    @property
    def cores(self) -> int:
        """The number of cores that the members can use together."""

    @property
    def last_algorithm(self) -> str:
        """The algorithm of the last reduction."""

    @property
    def runs(self) -> dict[str, int]:
        """How many reductions each algorithm has carried out; also once closed."""

    @property
    def waits(self) -> tuple[int, int, int, int]:
        """This member's successful spins, yields, late yields and sleeps so far."""

    def blocks(self, nbytes: int) -> tuple[int, bool]:
        """Return the bytes of a block of such a row, and if it goes past the caches."""

    def view(self, replicas: Sequence[int]) -> "Transport":
        """Return a transport among the same members, with so many rows in each.

        Both make their calls in one order.
        """

    def queue(self, more: int) -> int:
        """Count calls that a thread makes before all others; return their number."""

    def allocate(self, nbytes: int) -> "NDArray[np.uint8] | None":
        """Return new bytes in memory that the members share, None if there is none."""

    def set_timeout(self, seconds: float) -> None:
        """Let calls from now on wait so long for the other members."""

    def set_trace(self, trace: Trace | None) -> None:
        """Tell this of each call from now on that is over, in any view; None: nothing.

        It is called in the thread of the call, and must not refer to the group.
        """

    @property
    def identity(self) -> str:
        """What this group is called in records, and no other of these members."""

    def record_to(self, recorder: _core.Recorder, group: int, /) -> None:
        """Record each call from now on, as one of the group with this number."""

    def give_up(self, what: str, error: BaseException) -> None:
        """End the group for all members: `error` keeps this one from `what`.

        If the group has come to its end already, nothing happens.
        """

    def end(self, error: PopdistError) -> None:
        """End the group for all members with a CollectiveAborted- or MismatchError."""

    def close(self) -> None:
        """Leave the group, which makes no calls any more, in all views of it."""

    def disown(self) -> None:
        """Make no calls any more, in a forked child: the group is its parent's."""

    def all_reduce(
        self,
        arrays: Sequence[Pair],
        reduction: int,
        *,
        algorithm: int = -1,
        name: int = 0,
    ) -> None:
        """Reduce several arrays of one dtype as if they were one.

        Each target has as many rows as its source: each gets the result.
        """

    def reduce(
        self, source: Rows, target: Rows, reduction: int, root: int, *, name: int = 0
    ) -> None:
        """Reduce all rows into the one row of the target of member `root`.

        The targets of the others are scratch memory.
        """

    def reduce_scatter(
        self, source: Rows, target: Rows, reduction: int, *, name: int = 0
    ) -> None:
        """Give each replica its part of the reduction.

        The target is one row: the parts of the local replicas, one after the other.
        """

    def broadcast(
        self,
        row: Rows,
        root: int,
        *,
        name: int = 0,
        prelude_to: Operation = NO_PRELUDE,
    ) -> None:
        """Overwrite the row with that of member `root`."""

    def all_gather(
        self,
        source: Rows,
        target: Rows,
        lengths: Sequence[int],
        *,
        name: int = 0,
        prelude_to: Operation = NO_PRELUDE,
    ) -> None:
        """Gather every member's row, lengths[i] bytes of member i, in the target."""

    def gather(
        self,
        source: Rows,
        target: Rows,
        lengths: Sequence[int],
        root: int,
        *,
        name: int = 0,
    ) -> None:
        """Gather every member's row in the target of member `root`."""

    def scatter(
        self,
        source: Rows,
        target: Rows,
        lengths: Sequence[int],
        root: int,
        *,
        name: int = 0,
    ) -> None:
        """Hand out the source of member `root`: lengths[i] bytes go to member i."""

    def all_to_all(self, source: Rows, target: Rows, *, name: int = 0) -> None:
        """Exchange parts: the source's leading axis has one part for each member."""

    def send(self, row: Rows, to: int) -> None:
        """Send a row to one member, which must receive one like it."""

    def receive(self, row: Rows, source: int) -> None:
        """Overwrite the row with the one that member `source` sends."""

    def barrier(self, name: int = 0) -> None:
        """Return when all members have called it."""


class MeetMembers(Protocol):
    """What makes a transport."""

    def __call__(
        self,
        name: GroupName,
        rank: int,
        instances: Sequence[int],
        *,
        timeout: float,
        stall: float,
        simd: str | None,
        known: Mapping[int, Pidfd],
        ended_file: str,
    ) -> Transport:
        """Meet the other members, and return when all have come.

        Args:
            name: The same on all members, and that of no other group.
            rank: This member.
            instances: What the members are called in errors, by rank.
            timeout: For how many seconds a call waits for the others.
            stall: After how many seconds the member that it waits for is named.
            simd: The level of the processor's instructions to use; None for the best.
            known: A pidfd of each instance that this process knows from another
                group. The end of one of these is noticed even before it has come.
            ended_file: To which the launcher appends the number of each instance that
                has ended, one in a line; empty where none does.
        """


def all_reduce_arrays(
    transport: Transport,
    framework: Framework[A],
    arrays: Sequence[tuple[Sequence[A], Sequence[A]]],
    reduction: int,
    *,
    algorithm: int,
    name: int,
) -> None:
    """Reduce arrays of any dtypes, with one call for all that have the same.

    Args:
        arrays: Of each the rows that are read, and those that are written.
    """
    pairs, copies = pairs_of(framework, arrays)
    batches: dict[int, list[Pair]] = {}
    for pair in pairs:
        batches.setdefault(pair[0].dtype, []).append(pair)
    for batch in batches.values():
        transport.all_reduce(batch, reduction, algorithm=algorithm, name=name)
    copy_results(framework, copies)
