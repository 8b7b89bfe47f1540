"""The interface that carries rows between the members of a group.

A group turns arrays into rows and calls its transport; the transport knows addresses,
lengths and codes only.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from popdist.engine import _core
from popdist.engine.call_table import CallFields, EngineCall
from popdist.engine.meet.meeting import Meeting
from popdist.engine.meet.pidfds import Pidfd
from popdist.engine.rows import Pair, Rows
from popdist.engine.spec.dtypes import name_of
from popdist.engine.spec.operations import (
    AUTO,
    DIRECT,
    NO_PRELUDE,
    Operation,
    Trace,
)
from popdist.errors import PopdistError

# In Python 3.11 an attribute of an enumeration takes as long to read as a call's table
# takes to make.
_ALL_REDUCE, _REDUCE = Operation.ALL_REDUCE, Operation.REDUCE
_REDUCE_SCATTER, _BROADCAST = Operation.REDUCE_SCATTER, Operation.BROADCAST
_ALL_GATHER, _ALL_TO_ALL = Operation.ALL_GATHER, Operation.ALL_TO_ALL
_GATHER, _SCATTER = Operation.GATHER, Operation.SCATTER
_BARRIER = Operation.BARRIER


class Core(NamedTuple):
    """The objects of the C core for a group's shortcuts for plain arrays."""

    comm: _core.Comm
    split: _core.Split


class Transport(ABC):
    """One member's end of a group, and the operations of the group on rows.

    Each operation blocks until this member has its result, and is collective: all
    members make the same calls in the same order. `root` and other members are given by
    their index. `name` is the number of the call's name, 0 for none. The target is
    either the very memory of the source, or shares no memory with it.

    If members' arrays may differ, a separate call describes them first. The next
    operation is its `prelude_to`.

    Raises PopdistError: the call did not succeed on all members, and ends the group.
    """

    rank: int
    # The numbers of the members in errors, by rank.
    instances: tuple[int, ...]
    # How many rows each member has.
    replicas: tuple[int, ...]
    # The C core, which makes some calls without a detour; None without one.
    core: Core | None
    # The name of this group in records, unique among the groups of these members.
    identity: str
    # Counts calls that a thread makes before all others; returns their number.
    queue: Callable[[int], int]
    # Returns new bytes in memory that the members share, None if there is none.
    allocate: "Callable[[int], NDArray[np.uint8] | None]"
    # Lets calls from now on wait so many seconds for the other members.
    set_timeout: Callable[[float], None]
    # Tells this of each call from now on that is over, in any view; None: nothing. It
    # is called in the thread of the call, and must not refer to the group.
    set_trace: Callable[[Trace | None], None]
    # Records each call from now on, as one of the group with this number.
    record_to: Callable[[_core.Recorder, int], None]
    # Ends the group for all members: the error keeps this one from a call, which is
    # named. If the group has come to its end already, nothing happens.
    give_up: Callable[[str, BaseException], None]
    # Ends the group for all members with this error.
    end: Callable[[PopdistError], None]
    # Leaves the group, which makes no calls any more, in all views of it.
    close: Callable[[], None]
    # Makes no calls any more, in a forked child: the group is its parent's.
    disown: Callable[[], None]

    @property
    @abstractmethod
    def pidfds(self) -> dict[int, Pidfd]:
        """A pidfd of each other instance of this host, by what it is called."""

    @property
    @abstractmethod
    def cores(self) -> int:
        """The number of cores that the members can use together."""

    @property
    @abstractmethod
    def last_algorithm(self) -> str:
        """The algorithm of the last reduction."""

    @property
    @abstractmethod
    def runs(self) -> dict[str, int]:
        """How many reductions each algorithm has carried out; also once closed."""

    @property
    @abstractmethod
    def waits(self) -> tuple[int, int, int, int]:
        """This member's successful spins, yields, late yields and sleeps so far."""

    @abstractmethod
    def blocks(self, nbytes: int) -> tuple[int, bool]:
        """Return the bytes of a block of such a row, and if it goes past the caches."""

    @abstractmethod
    def view(self, replicas: Sequence[int]) -> "Transport":
        """Return a transport among the same members, with so many rows in each.

        Both make their calls in one order.
        """

    @abstractmethod
    def run(self, call: CallFields, /) -> None:
        """Make a call on rows that have been checked."""

    def all_reduce(
        self,
        arrays: Sequence[Pair],
        reduction: int,
        *,
        algorithm: int = AUTO,
        name: int = 0,
    ) -> None:
        """Reduce several arrays of one dtype as if they were one.

        Each target has as many rows as its source: each gets the result.
        """
        if not arrays:
            return
        dtype, replicas = arrays[0][0].dtype, self.replicas[self.rank]
        for source, target in arrays:
            _check_pair(source, target, dtype, replicas, replicas)
        how = dtype, reduction, algorithm, -1, name, NO_PRELUDE, ()
        self.run((_ALL_REDUCE, arrays, *how))

    def reduce(
        self, source: Rows, target: Rows, reduction: int, root: int, *, name: int = 0
    ) -> None:
        """Reduce all rows into the one row of the target of member `root`.

        The targets of the others are scratch memory.
        """
        _check_pair(source, target, source.dtype, self.replicas[self.rank], 1)
        # In steps of the direct algorithm; for one-shot there is too little to gain.
        how = source.dtype, reduction, DIRECT, root, name, NO_PRELUDE, ()
        self.run((_REDUCE, [(source, target)], *how))

    def reduce_scatter(
        self, source: Rows, target: Rows, reduction: int, *, name: int = 0
    ) -> None:
        """Give each replica its share of the reduction.

        The target is one row: the shares of the local replicas, one after the other.
        """
        total, local = sum(self.replicas), self.replicas[self.rank]
        if source.count % total or target.count != source.count // total * local:
            raise ValueError(
                f"The target has {target.count} elements, but the {local} of {total} "
                f"replicas here get equal shares of {source.count}."
            )
        how = source.dtype, reduction, DIRECT, -1, name, NO_PRELUDE, ()
        self.run((_REDUCE_SCATTER, [(source, target)], *how))

    def broadcast(
        self,
        row: Rows,
        root: int,
        *,
        name: int = 0,
        prelude_to: Operation = NO_PRELUDE,
    ) -> None:
        """Overwrite the row with member `root`'s row."""
        lengths = [row.nbytes] * len(self.replicas)
        how = row, row, lengths, root, name, prelude_to
        self._run_exchange(_BROADCAST, *how)

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
        _check_bytes("source", source, lengths[self.rank])
        _check_bytes("target", target, sum(lengths))
        how = source, target, lengths, -1, name, prelude_to
        self._run_exchange(_ALL_GATHER, *how)

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
        _check_bytes("source", source, lengths[self.rank])
        if self.rank == root:
            _check_bytes("target", target, sum(lengths))
        self._run_exchange(_GATHER, source, target, lengths, root, name)

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
        if self.rank == root:
            _check_bytes("source", source, sum(lengths))
        _check_bytes("target", target, lengths[self.rank])
        self._run_exchange(_SCATTER, source, target, lengths, root, name)

    def all_to_all(self, source: Rows, target: Rows, *, name: int = 0) -> None:
        """Exchange shares: the source's leading axis has one for each member."""
        size = len(self.replicas)
        if not source.shape or source.shape[0] != size:
            raise ValueError(
                f"The source has shape {source.shape}, but needs a leading axis of "
                f"{size}: a share for each member."
            )
        _check_bytes("target", target, source.nbytes)
        lengths = [source.nbytes // size] * size
        self._run_exchange(_ALL_TO_ALL, source, target, lengths, -1, name)

    def send(self, row: Rows, to: int) -> None:
        """Send a row to one member, which must receive one like it."""
        self.run(EngineCall(Operation.SEND, [(row, row)], row.dtype, root=to))

    def receive(self, row: Rows, source: int) -> None:
        """Overwrite the row with the one that member `source` sends."""
        self.run(EngineCall(Operation.RECEIVE, [(row, row)], row.dtype, root=source))

    def barrier(self, name: int = 0) -> None:
        """Return when all members have called it."""
        self.run((_BARRIER, (), 0, 0, DIRECT, 0, name, NO_PRELUDE, ()))

    def _run_exchange(
        self,
        operation: Operation,
        source: Rows,
        target: Rows,
        lengths: Sequence[int],
        root: int,
        name: int,
        prelude_to: Operation = NO_PRELUDE,
    ) -> None:
        if not len(source.addresses) == len(target.addresses) == 1:
            source.check_single()
            target.check_single()
        # In a scatter only the root's source counts.
        dtype = target.dtype if operation is _SCATTER else source.dtype
        arrays = ((source, target),)
        how = dtype, 0, DIRECT, root, name, prelude_to, lengths
        self.run((operation, arrays, *how))


def _check_pair(
    source: Rows, target: Rows, dtype: int, num_sources: int, num_targets: int
) -> None:
    """Raise ValueError unless one call can reduce these rows into those.

    Args:
        num_sources: How many rows this member has.
        num_targets: How many it has of results.
    """
    if source.dtype != dtype or target.dtype != dtype:
        raise ValueError(
            f"Rows of {name_of(source.dtype)} are to be reduced into rows of "
            f"{name_of(target.dtype)} in a call of {name_of(dtype)}, but one call "
            "has one dtype."
        )
    if source.count != target.count:
        raise ValueError(
            f"Rows of {source.count} elements are to be reduced into rows of "
            f"{target.count}. Give rows of one length."
        )
    given = len(source.addresses), len(target.addresses)
    if given != (num_sources, num_targets):
        raise ValueError(
            f"{given[0]} rows are to be reduced into {given[1]}, but this member "
            f"has {num_sources}, and {num_targets} of results."
        )


def _check_bytes(which: str, rows: Rows, nbytes: int) -> None:
    """Raise ValueError unless rows have as many bytes as the members' lengths say."""
    if rows.nbytes != nbytes:
        raise ValueError(
            f"The {which} has {rows.nbytes} bytes, but the members' lengths make it "
            f"{nbytes}."
        )


class MeetMembers(Protocol):
    """A function that makes a transport."""

    def __call__(self, meeting: Meeting, *, simd: str | None) -> Transport:
        """Meet the other members, and return when all have come.

        Args:
            simd: The level of the processor's instructions to use; None for the best.
        """
