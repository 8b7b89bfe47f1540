"""Collectives among the replicas that the members of a group hold.

A call is collective: all members of the group make the same calls in the same order,
with arrays of the same dtype and shape. It returns when this member has its result.
An error ends the group for all members: let it end the program.
"""

from collections.abc import Sequence
from typing import Self

from popdist.engine.calls.exchanges import Exchanges
from popdist.engine.calls.point_to_point import PointToPoint
from popdist.engine.calls.reductions import Reductions
from popdist.engine.calls.signatures import GroupCalls
from popdist.engine.endpoint import Endpoint
from popdist.engine.meet.pidfds import Pidfd
from popdist.engine.spec.operations import Trace
from popdist.engine.transport import Transport
from popdist.errors import CollectiveAbortedError, MismatchError


# The first base has the types of the calls, and the others carry them out. The type of
# a result is different with async_op=True.
class Group(GroupCalls, Reductions, Exchanges, PointToPoint):  # type: ignore[misc]
    """The replicas of some instances, as one instance sees them.

    A flat group takes one array from each member. A group with replicas takes an
    array with a leading axis, one row for each local replica, or a list of as many
    arrays.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        replicas: Sequence[int] | None = None,
        algorithm: str = "auto",
    ) -> None:
        """Make the first view of a group, after its members have met.

        Args:
            transport: This member's transport.
            replicas: How many rows each member has; None for one, without an axis.
        """
        self._join(Endpoint(transport), replicas, algorithm)

    @classmethod
    def over(
        cls,
        endpoint: Endpoint,
        replicas: Sequence[int] | None = None,
        algorithm: str = "auto",
        expects_marks: bool = False,
    ) -> Self:
        """Return a view of this endpoint's group."""
        view = cls.__new__(cls)
        view._join(endpoint, replicas, algorithm, expects_marks)
        return view

    def view(
        self, replicas: Sequence[int] | None, expects_marks: bool = False
    ) -> "Group":
        """Return a group of the same members, with so many rows in each of them.

        Both make their calls in one order, and share memory until both are closed.

        Args:
            expects_marks: Warn of the first array without a mark that its rows are
                replicas' arrays (ReplicaRows).
        """
        self._check_open()
        return Group.over(self._endpoint, replicas, self._algorithm, expects_marks)

    def _join(
        self,
        endpoint: Endpoint,
        replicas: Sequence[int] | None,
        algorithm: str,
        expects_marks: bool = False,
    ) -> None:
        self._use(endpoint, replicas, expects_marks)
        self._prefer(algorithm)
        endpoint.open_view(self)

    def __repr__(self) -> str:
        state = ", closed" if self._closed or self._endpoint.closed else ""
        return (
            f"<Group: member {self.rank} of {self.size}, "
            f"{self.num_replicas} replicas{state}>"
        )

    @property
    def pidfds(self) -> dict[int, Pidfd]:
        """A pidfd of each other instance, by what it is called."""
        return {} if self._endpoint.closed else self.transport.pidfds

    @property
    def last_algorithm(self) -> str:
        """The algorithm of the last reduction."""
        return self.transport.last_algorithm

    @property
    def cores(self) -> int:
        """The number of cores that the members can use together."""
        self._check_open()
        return self.transport.cores

    @property
    def runs(self) -> dict[str, int]:
        """The number of reductions by each algorithm, in all views of this group."""
        return self.transport.runs

    @property
    def waits(self) -> tuple[int, int, int, int]:
        """This member's successful spins, yields, late yields and sleeps so far.

        They count for all views of this group together. The yields include the late
        ones.
        """
        return self.transport.waits

    def blocks(self, nbytes: int) -> tuple[int, bool]:
        """Return how `direct` currently moves a row of this many bytes.

        The result is the bytes of a block, and whether it is written past the caches.
        """
        self._check_open()
        return self.transport.blocks(nbytes)

    def set_timeout(self, seconds: float) -> None:
        """Set the timeout of this member's later calls.

        It applies to all views of the group.
        """
        self._check_open()
        self.transport.set_timeout(seconds)

    def set_trace(self, trace: Trace | None) -> None:
        """Call a function after each call of this member, in all views; None for none.

        Its arguments are the call's operation, dtype, reduction, algorithm, root,
        number of elements and name, all as numbers; its start and end in the time of
        monotonic_ns(); and whether it succeeded. The function must not refer to the
        group.
        """
        self.transport.set_trace(trace)

    def abort(self, message: str) -> None:
        """End the group: all members get a CollectiveAbortedError with this message."""
        self.transport.end(CollectiveAbortedError(message))

    def end_with_mismatch(self, message: str) -> None:
        """End the group: all members get a MismatchError with this message."""
        self.transport.end(MismatchError(message))

    def close(self) -> None:
        """Leave the group. Every member closes its groups in the end.

        When its last view is closed, this member leaves the group and releases its
        memory. Arrays made by empty() remain valid.
        """
        if not self._closed:
            self._endpoint.close_view(self)
            self._closed = True
            self._refuse_calls()

    def __enter__(self) -> Self:
        """Return the group, which is closed at the end of the `with` block."""
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Close the group.

        If the block has raised while calls of this member are under way, the group is
        ended for all members: close() would wait for calls that others may never make.
        """
        if error is not None and self._endpoint.worker.pending:
            self.give_up("a with block", error)
        self.close()
