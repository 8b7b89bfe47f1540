"""The transport of several hosts: shared memory on each, links between them."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Self

from popdist.engine import _core
from popdist.engine.hosts.exchanges import HostExchanges
from popdist.engine.hosts.meeting import MeetOverHosts
from popdist.engine.hosts.member import HostsMember
from popdist.engine.hosts.point_to_point import receive_row, send_row
from popdist.engine.hosts.world import JobHosts
from popdist.engine.meet.group_name import GroupName
from popdist.engine.meet.pidfds import Pidfd
from popdist.engine.rows import Rows
from popdist.engine.shm.arena import Meeting
from popdist.engine.shm.arena_transport import ArenaTransport, Exchange
from popdist.engine.shm.member import ShmMember
from popdist.engine.shm.transport import ShmTransport
from popdist.engine.spec.dtypes import item_bytes_of
from popdist.engine.spec.operations import Described, Operation
from popdist.engine.transport import Core, Transport
from popdist.engine.tuning import Tuning


class HostsTransport(ArenaTransport):
    """Carries rows among the members of a group on several hosts."""

    def __init__(self, member: HostsMember, replicas: Sequence[int]) -> None:
        self._split = _core.Split(member.rank, replicas, hosts=member.layout.host_of)
        core = Core(member.comm, self._split, member.failure)
        super().__init__(member.rank, member.instances, replicas, member.local, core)
        self._member = member
        self._exchanges = HostExchanges(member)
        # What does not depend on the rows.
        self.disown, self.identity = member.disown, member.uid
        self.set_trace, self.set_timeout = member.set_trace, member.set_timeout
        self.end, self.give_up, self.close = member.end, member.give_up, member.close

    @classmethod
    def meet(
        cls,
        name: GroupName,
        rank: int,
        instances: Sequence[int],
        *,
        job_hosts: JobHosts,
        timeout: float = 1800.0,
        stall: float = 60.0,
        simd: str | None = None,
        tuning: Tuning | None = None,
        known: Mapping[int, Pidfd] | None = None,
        ended_file: str = "",
    ) -> Transport:
        """Meet the other members, and return when all have come; see MeetMembers.

        Members of one host get that one's transport, which never uses links.

        Args:
            job_hosts: Where the instances of the job are.
        """
        meeting = Meeting(
            name, rank, instances, timeout, stall, known or {}, ended_file
        )
        meet = MeetOverHosts(meeting, job_hosts)
        if len(set(meet.hosts())) == 1:
            return ShmTransport(ShmMember(meeting, simd, tuning), [1] * len(instances))
        member = meet.run(simd, tuning)
        return cls(member, [1] * len(instances))

    def view(self, replicas: Sequence[int]) -> Self:
        return type(self)(self._member, replicas)

    def allocate(self, nbytes: int) -> None:
        """Return None: members on different hosts share no memory."""

    def send(self, row: Rows, to: int) -> None:
        call: Described = (Operation.SEND, row.dtype, 0, 0, to, row.count, 0, 0)
        self._member.run(call, (), partial(send_row, self._member, row, to), [row])

    def receive(self, row: Rows, source: int) -> None:
        call: Described = (Operation.RECEIVE, row.dtype, 0, 0, source, row.count, 0, 0)
        steps = partial(receive_row, self._member, row, source)
        self._member.run(call, (), steps, [row])

    def barrier(self, name: int = 0) -> None:
        call: Described = (Operation.BARRIER, 0, 0, 0, 0, 0, name, 0)
        self._member.run(call, (), self._exchanges.barrier)

    def _reduce(
        self,
        segments: "Sequence[_core.Segment]",
        shapes: Sequence[Sequence[int]],
        *call: int,
    ) -> None:
        self._member.reduce(self._split, segments, shapes, *call)

    def _exchange(
        self,
        call: Exchange,
        lengths: Sequence[int],
        shapes: Sequence[Sequence[int]],
        source: Rows,
        target: Rows,
    ) -> None:
        operation, prelude_to, dtype, root, name = call
        parts, exchanges = tuple(lengths), self._exchanges
        nbytes, details = sum(parts), (parts, *shapes)
        match operation:
            case Operation.BROADCAST:
                nbytes, details = source.nbytes, tuple(shapes)
                step = partial(exchanges.broadcast, source, root)
            case Operation.ALL_GATHER:
                step = partial(exchanges.all_gather, source, target, parts)
            case Operation.GATHER:
                step = partial(exchanges.gather, source, target, parts, root)
            case Operation.SCATTER:
                step = partial(exchanges.scatter, source, target, parts, root)
            case _:
                step = partial(exchanges.all_to_all, source, target)
        count = nbytes // item_bytes_of(dtype)
        described = (operation, dtype, 0, 0, root, count, name, prelude_to)
        self._member.run(described, details, step, [source, target])
