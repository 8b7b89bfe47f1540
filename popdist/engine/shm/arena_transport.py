"""The part of a transport that is the same on one host and on several.

In both, members of a host share an arena, which the core uses.
"""

from collections.abc import Sequence
from typing import Any, Protocol, Self

from popdist.engine import _core
from popdist.engine.call_table import CallFields
from popdist.engine.meet.pidfds import Pidfd
from popdist.engine.shm.arena import Arena
from popdist.engine.spec.operations import ALGORITHM_NAMES, ALGORITHMS
from popdist.engine.transport import Core, Transport
from popdist.engine.tuning import cores_of_members
from popdist.errors import PopdistError


class ArenaMember(Protocol):
    """One member of a group, for all its views: see Transport.

    host_of: The number of each member's host; None if all are on one.
    """

    rank: int
    instances: tuple[int, ...]
    comm: _core.Comm
    arena: Arena
    identity: str
    host_of: Sequence[int] | None

    def allocate(self, nbytes: int) -> Any: ...
    def set_timeout(self, seconds: float) -> None: ...
    def give_up(self, what: str, error: BaseException) -> None: ...
    def end(self, error: PopdistError) -> None: ...
    def close(self) -> None: ...
    def disown(self) -> None: ...


class ArenaTransport(Transport):
    """A transport with calls that the core makes, and without the ways to meet."""

    def __init__(self, member: ArenaMember, replicas: Sequence[int]) -> None:
        """Take part in a group, with so many rows in each of its members."""
        self.member, comm = member, member.comm
        self.rank, self.instances = member.rank, member.instances
        self.identity, self.replicas = member.identity, tuple(replicas)
        self._split = _core.Split(self.rank, self.replicas, hosts=member.host_of)
        self.core, self._comm = Core(comm, self._split), comm
        self.queue, self.record_to = comm.queue, comm.record_to
        self.set_trace, self.set_timeout = comm.set_trace, member.set_timeout
        self.allocate, self.disown = member.allocate, member.disown
        self.end, self.give_up, self.close = member.end, member.give_up, member.close

    def view(self, replicas: Sequence[int]) -> Self:
        # torch.ops.popdist.all_reduce without a group makes a view in each call.
        is_equal = tuple(replicas) == self.replicas
        return self if is_equal else type(self)(self.member, replicas)

    @property
    def pidfds(self) -> dict[int, Pidfd]:
        return self.member.arena.watching()

    @property
    def cores(self) -> int:
        """How many cores the members of this host can use together."""
        return cores_of_members(self.member.arena.pids)

    @property
    def last_algorithm(self) -> str:
        return ALGORITHM_NAMES[self._comm.last()[0]]

    @property
    def runs(self) -> dict[str, int]:
        return dict(zip(ALGORITHMS, self._comm.runs(), strict=True))

    @property
    def waits(self) -> tuple[int, int, int, int]:
        return self._comm.waits()

    def blocks(self, nbytes: int) -> tuple[int, bool]:
        block_bytes, past_caches = self._comm.blocks(nbytes) or (0, 0)
        return block_bytes, bool(past_caches)

    def run(self, call: CallFields) -> None:
        self._comm.run(self._split, call)
