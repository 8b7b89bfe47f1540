"""The end of an attempt: what the supervisor returns, and a verdict follows from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from poprun.supervise.job_state import JobState
from poprun.wire.events import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnd:
    """The facts about the end of an attempt, from which its verdict follows."""

    state: JobState
    # The events that the supervisor listened to, in their order.
    events: Sequence[Event] = ()
    # By instance: when its program was started, on the clock of the events.
    started_ns: Mapping[int, int] = field(default_factory=dict)
    # The wait status; None if mpirun has not ended.
    mpirun_status: int | None = None
    mpirun_output: bytes = b""

    @property
    def unsurvived_events(self) -> list[Event]:
        """The events without the losses that an elastic job has survived."""
        was_stopped = self.state.cause is not None
        survived = self.state.membership.survived(was_stopped=was_stopped)
        return [event for event in self.events if event not in survived]
