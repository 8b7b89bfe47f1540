"""The transport of one host: rows go through shared memory."""

from typing import Self

from popdist.engine.meet.meeting import Meeting
from popdist.engine.shm.arena_transport import ArenaTransport
from popdist.engine.shm.shm_member import ShmMember
from popdist.engine.tuning import Tuning


class ShmTransport(ArenaTransport):
    """Carries rows among the members of one arena."""

    @classmethod
    def meet(
        cls, meeting: Meeting, *, simd: str | None = None, tuning: Tuning | None = None
    ) -> Self:
        """Meet the other members, and return when all have come; see MeetMembers.

        Args:
            tuning: The sizes of the arena; by default the measured ones.
        """
        return cls(ShmMember(meeting, simd, tuning), [1] * meeting.size)
