"""The transport of one host: rows go through shared memory."""

from collections.abc import Mapping, Sequence
from typing import Self

from popdist.engine import _core
from popdist.engine.meet.group_name import GroupName
from popdist.engine.meet.pidfds import Pidfd
from popdist.engine.shm.arena import Meeting
from popdist.engine.shm.arena_transport import ArenaTransport
from popdist.engine.shm.shm_member import ShmMember
from popdist.engine.transport import Core
from popdist.engine.tuning import Tuning


class ShmTransport(ArenaTransport):
    """Carries rows among the members of one arena, with so many rows in each."""

    def __init__(self, member: ShmMember, replicas: Sequence[int]) -> None:
        split = _core.Split(member.rank, replicas)
        core = Core(member.comm, split)
        super().__init__(member.rank, member.instances, replicas, member, core)
        self.member = member
        # Methods of the member that do not depend on the rows.
        self.disown, self.set_trace = member.comm.close, member.comm.set_trace
        self.identity, self.allocate = member.arena.identity, member.allocate
        self.end, self.give_up, self.close = member.end, member.give_up, member.close
        self.set_timeout = member.set_timeout

    @classmethod
    def meet(
        cls,
        name: GroupName,
        rank: int,
        instances: Sequence[int],
        *,
        timeout: float = 1800.0,
        stall: float = 60.0,
        simd: str | None = None,
        tuning: Tuning | None = None,
        known: Mapping[int, Pidfd] | None = None,
        ended_file: str = "",
    ) -> Self:
        """Meet the other members, and return when all have come; see MeetMembers.

        Args:
            tuning: The sizes of the arena; by default the measured ones.
        """
        meeting = Meeting(name, rank, instances, timeout, stall, known, ended_file)
        return cls(ShmMember(meeting, simd, tuning), [1] * len(instances))

    def view(self, replicas: Sequence[int]) -> Self:
        # torch.ops.popdist.all_reduce without a group makes a view in each call.
        is_equal = tuple(replicas) == self.replicas
        return self if is_equal else type(self)(self.member, replicas)
