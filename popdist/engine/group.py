"""Collectives among the replicas that the members of one arena hold.

A call is collective: all members of the group make the same calls in the same order,
with arrays of the same dtype and shape. It returns when this member has its result.
An error ends the group for all members: let it end the program.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Self, TypeVar, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray

from popdist.engine import _core
from popdist.engine.calls.exchanges import Exchanges
from popdist.engine.calls.point_to_point import PointToPoint
from popdist.engine.calls.reductions import Reductions
from popdist.engine.calls.signatures import GroupCalls
from popdist.engine.endpoint import Endpoint
from popdist.engine.failures import aborted, unusable
from popdist.engine.meet.group_name import GroupName
from popdist.engine.meet.pidfds import Pidfd
from popdist.engine.shm_transport import ShmTransport
from popdist.engine.spec.operations import ALGORITHM_NAMES
from popdist.engine.tuning import Tuning

S = TypeVar("S", bound=np.generic)


# The first base has the types of the calls that the others carry out, whose result has
# another type with async_op=True.
class Group(GroupCalls, Reductions, Exchanges, PointToPoint):  # type: ignore[misc]
    """The replicas of some instances, as one instance sees them.

    A flat group takes one array from each member. A group with replicas takes an
    array with a leading axis, one row for each local replica, or a list of as many
    arrays.
    """

    def __init__(
        self,
        name: GroupName,
        rank: int,
        size: int,
        *,
        replicas: Sequence[int] | None = None,
        instances: Sequence[int] | None = None,
        timeout: float = 1800.0,
        stall: float = 60.0,
        algorithm: str = "auto",
        simd: str | None = None,
        tuning: Tuning | None = None,
        known: Mapping[int, Pidfd] | None = None,
        ended_file: str = "",
    ) -> None:
        """Meet the other members, and return when all have come.

        Args:
            name: The same on all members, and that of no other group.
            known: A pidfd of each instance that this process knows from another
                group. The end of one of these is noticed even before it has come.
            ended_file: To which the launcher appends the number of each instance that
                has ended, one in a line; empty where none does.
        """
        endpoint = Endpoint(
            name,
            rank,
            size,
            instances=range(size) if instances is None else instances,
            timeout=timeout,
            stall=stall,
            simd=simd,
            tuning=tuning,
            known=known,
            ended_file=ended_file,
        )
        self._join(endpoint, replicas, algorithm)

    @classmethod
    def over(
        cls,
        endpoint: Endpoint,
        replicas: Sequence[int] | None = None,
        algorithm: str = "auto",
        expects_marks: bool = False,
    ) -> Self:
        """Return a view of the group that this endpoint is of."""
        view = cls.__new__(cls)
        view._join(endpoint, replicas, algorithm, expects_marks)
        return view

    def view(
        self, replicas: Sequence[int] | None, expects_marks: bool = False
    ) -> "Group":
        """Return a group of the same members, with so many rows in each of them.

        Both make their calls in one order, and share memory until both are closed.

        Args:
            expects_marks: Warn of the first array whose rows are not marked as those
                of replicas (ReplicaRows).
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
        if replicas is not None and len(replicas) != endpoint.size:
            raise ValueError(
                f"Numbers of replicas are given for {len(replicas)} members, but the "
                f"group has {endpoint.size}. Give one for each member."
            )
        self._endpoint = endpoint
        self._closed = False
        counts = [1] * endpoint.size if replicas is None else replicas
        self._use(ShmTransport(endpoint, counts), replicas is None, expects_marks)
        self._prefer(algorithm)
        endpoint.open_view(self)

    def _check_open(self) -> None:
        if self._closed:
            raise unusable(None, self._endpoint.instances)

    def __repr__(self) -> str:
        state = ", closed" if self._closed or self._endpoint.closed else ""
        return (
            f"<Group: member {self.rank} of {self.size}, "
            f"{self.num_replicas} replicas{state}>"
        )

    @property
    def pidfds(self) -> dict[int, Pidfd]:
        """A pidfd of each other instance, by what it is called."""
        return self._endpoint.pidfds

    @property
    def last_algorithm(self) -> str:
        """How the last reduction was carried out."""
        return ALGORITHM_NAMES[self._endpoint.comm.last()[0]]

    @property
    def cores(self) -> int:
        """How many cores the members can use together."""
        self._check_open()
        return self._endpoint.cores

    @property
    def runs(self) -> dict[str, int]:
        """How many reductions each algorithm has carried out, in all views of this."""
        return self._endpoint.runs

    @property
    def waits(self) -> tuple[int, int, int, int]:
        """Spins that sufficed, yields, late yields and sleeps of this member so far.

        Of all views of this group together. Late yields are among the yields.
        """
        return self._endpoint.comm.waits()

    def blocks(self, nbytes: int) -> tuple[int, bool]:
        """Return how `direct` moves a row of so many bytes, as far as it has tried.

        These are the bytes of a block, and whether it is written past the caches.
        """
        self._check_open()
        block_bytes, past_caches = self._endpoint.comm.blocks(nbytes) or (0, 0)
        return block_bytes, bool(past_caches)

    @overload
    def empty(self, shape: int | Sequence[int]) -> NDArray[np.float32]: ...
    @overload
    def empty(
        self, shape: int | Sequence[int], dtype: type[S] | np.dtype[S]
    ) -> NDArray[S]: ...
    @overload
    def empty(self, shape: int | Sequence[int], dtype: DTypeLike) -> NDArray[Any]: ...
    def empty(
        self, shape: int | Sequence[int], dtype: DTypeLike = np.float32
    ) -> NDArray[Any]:
        """Return a new array that lives in the arena.

        all_reduce of such arrays, on all members, copies nothing in or out: each
        member adds up its part of all members' arrays where they lie. Where the
        machine does not let memory be shared so, it is an ordinary array.
        """
        kind = np.dtype(dtype)
        if kind.hasobject:
            raise TypeError(
                f"The dtype is {kind}, but other processes cannot use the objects of "
                "this one. Give a dtype of numbers."
            )
        self._check_open()
        ordinary: NDArray[Any] = np.empty(shape, kind)
        held = self._endpoint.allocate(ordinary.nbytes)
        return ordinary if held is None else held.view(kind).reshape(ordinary.shape)

    def peek(self) -> int:
        """Return the number of the name of the call that member 0 makes next.

        Blocks until member 0 has begun it. 0 for a call without a name.
        """
        self._check_open()
        try:
            return self._endpoint.comm.peek()
        except _core.Failure:
            # Explained below: Ctrl-C while that is done must not show this one.
            pass
        raise self._endpoint.failure()

    def give_up(self, what: str, error: BaseException) -> None:
        """End the group for all, because an error keeps this member from a call."""
        self.transport.give_up(what, error)

    def set_timeout(self, seconds: float) -> None:
        """Let this member's calls from now on wait so long for the others.

        Concerns all views of the group.
        """
        self._check_open()
        self._endpoint.set_timeout(seconds)

    def abort(self, message: str) -> None:
        """End the group: all members get a CollectiveAbortedError with this message."""
        self._endpoint.comm.end(aborted(message))

    def end_with_mismatch(self, message: str) -> None:
        """End the group: all members get a MismatchError with this message."""
        self._endpoint.comm.end(message)

    def close(self) -> None:
        """Make no more calls here. Every member closes its groups in the end.

        With the last of its views this member leaves the group, and gives back its
        memory. Arrays made by empty() stay what they are.
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
