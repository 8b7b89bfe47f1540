"""The transport of several hosts: shared memory on each, links between them."""

from popdist.engine.hosts.meeting import MeetOverHosts
from popdist.engine.hosts.world import JobHosts
from popdist.engine.meet.meeting import Meeting
from popdist.engine.shm.arena_transport import ArenaTransport
from popdist.engine.shm.shm_transport import ShmTransport
from popdist.engine.transport import Transport
from popdist.engine.tuning import Tuning


class HostsTransport(ArenaTransport):
    """Carries rows among the members of a group on several hosts."""

    @classmethod
    def meet(
        cls,
        meeting: Meeting,
        *,
        job_hosts: JobHosts,
        simd: str | None = None,
        tuning: Tuning | None = None,
    ) -> Transport:
        """Meet the other members, and return when all have come; see MeetMembers.

        If all members are on one host, they get its transport, which never uses links.

        Args:
            job_hosts: Where the instances of the job are.
        """
        meet = MeetOverHosts(meeting, job_hosts)
        if len(set(meet.hosts())) == 1:
            return ShmTransport.meet(meeting, simd=simd, tuning=tuning)
        return cls(meet.run(simd, tuning), [1] * meeting.size)
