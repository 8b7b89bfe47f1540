"""The verdict on an attempt: its exit code and its cause. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from poprun.result.instances import InstanceEnd
from poprun.supervise.stopping import Reason
from poprun.supervise.supervisor import AttemptEnd
from poprun.wire.events import (
    DevicesLost,
    Interrupted,
    MpirunRefused,
    SlurmEndsJob,
)

MACHINERY = (Reason.MPIRUN_ENDED, Reason.SHIM_LOST)
# The reasons, or none, for which a job with a failed instance or mpirun stops.
BY_FAILURE = (None, Reason.FAILED, *MACHINERY)
# After these another attempt may follow.
RESTARTED = (*BY_FAILURE, Reason.HOST_LOST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The exit code of poprun, and the cause."""

    exit_code: int
    # The cause as a sentence, unless the report explains why an instance failed.
    sentence: str = ""
    # The instance that failed first, if an instance failed.
    first: InstanceEnd | None = None
    also: Sequence[InstanceEnd] = ()
    # mpirun's messages, and whether they belong to the explanation.
    mpirun_text: str = ""
    quote_mpirun: bool = False
    warnings: Sequence[str] = ()
    # All instances, in rank order.
    instances: Sequence[InstanceEnd] = field(default=(), compare=False)

    @property
    def has_failed(self) -> bool:
        """Whether the job has failed, and not its output alone."""
        return self.first is not None or bool(self.sentence)


def may_restart(end: AttemptEnd) -> bool:
    """Return whether another attempt may follow if this one has failed.

    It may after the failure of an instance, a host or mpirun, once an instance has
    run; not if the user ends the job, by a signal, a timeout or a pager, nor after the
    loss of the IPUs.
    """
    cause = end.state.cause
    if not end.state.started or (cause and cause.reason) not in RESTARTED:
        return False
    final = (DevicesLost, Interrupted, MpirunRefused, SlurmEndsJob)
    return not any(isinstance(event, final) for event in end.events)
