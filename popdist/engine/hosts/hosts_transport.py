"""The transport of several hosts: shared memory on each, links between them."""

from collections.abc import Mapping, Sequence
from typing import Self

from popdist.engine import _core
from popdist.engine.hosts.hosts_member import HostsMember
from popdist.engine.hosts.meeting import MeetOverHosts
from popdist.engine.hosts.world import JobHosts
from popdist.engine.meet.group_name import GroupName
from popdist.engine.meet.pidfds import Pidfd
from popdist.engine.shm.arena import Meeting
from popdist.engine.shm.arena_transport import ArenaTransport
from popdist.engine.shm.shm_member import ShmMember
from popdist.engine.shm.shm_transport import ShmTransport
from popdist.engine.transport import Core, Transport
from popdist.engine.tuning import Tuning


class HostsTransport(ArenaTransport):
    """Carries rows among the members of a group on several hosts."""

    def __init__(self, member: HostsMember, replicas: Sequence[int]) -> None:
        split = _core.Split(member.rank, replicas, hosts=member.layout.host_of)
        core = Core(member.comm, split)
        super().__init__(member.rank, member.instances, replicas, member.local, core)
        self._member = member
        # Methods of the member that do not depend on the rows.
        self.disown, self.identity = member.disown, member.uid
        self.set_trace, self.set_timeout = member.comm.set_trace, member.set_timeout
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

        If all members are on one host, they get its transport, which never uses links.

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
