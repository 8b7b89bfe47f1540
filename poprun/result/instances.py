"""The end of each instance of an attempt: events -> InstanceEnd. Pure."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from poprun.helpers.processes import exit_code, signal_name
from poprun.plan.values import Plan
from poprun.supervise.attempt_end import AttemptEnd
from poprun.wire.events import (
    Exited,
    FailedInFinalize,
    Refused,
    Started,
    TorchGroupsMade,
)
from poprun.words import printable

SUCCEEDED, FAILED, STOPPED = "succeeded", "failed", "stopped"
LOST, NOT_STARTED = "lost", "not started"
STATES = (SUCCEEDED, FAILED, STOPPED, LOST, NOT_STARTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceEnd:
    """How one instance ended, as far as it is known."""

    rank: int
    # One of STATES. An instance that poprun or mpirun has stopped has not failed.
    state: str
    host: str = ""
    is_own_host: bool = True
    # The argv of its program, and the program's name where the job has several.
    program: Sequence[str] = ()
    program_name: str = ""
    # The wait status, and the time of the end; None if they are not known.
    status: int | None = None
    at_ns: int | None = None
    # It did not end, because MPI_Finalize waits for the other instances.
    finalizing: bool = False
    wall_s: float | None = None
    user_s: float | None = None
    system_s: float | None = None
    peak_kib: int | None = None
    at_cpu_limit: bool = False
    lacks_faulthandler: bool = False
    uses_torch_groups: bool = False
    # The value of --stdin that gives it input, if its standard input was empty.
    stdin_advice: str = ""
    # The end of its stderr.
    stderr: bytes = b""

    @property
    def exit_code(self) -> int | None:
        """The code that a shell would show."""
        return None if self.status is None else exit_code(self.status)

    @property
    def killed_by(self) -> int | None:
        """The signal that killed it, if one did."""
        if self.status is None or not os.WIFSIGNALED(self.status):
            return None
        return os.WTERMSIG(self.status)

    @property
    def signal_name(self) -> str | None:
        return None if self.killed_by is None else signal_name(self.killed_by)

    @property
    def cpu_s(self) -> float | None:
        if self.user_s is None or self.system_s is None:
            return None
        return self.user_s + self.system_s

    @property
    def title(self) -> str:
        """Its number, with the program where the job has several."""
        name = f" ({printable(self.program_name)})" if self.program_name else ""
        return f"{self.rank}{name}"

    @property
    def failure(self) -> str:
        """How it failed, as the predicate of a sentence."""
        if self.finalizing:
            return (
                f"failed with exit code {self.exit_code} and waited in MPI_Finalize "
                "for the others"
            )
        if self.killed_by is not None:
            return f"was killed by {self.signal_name}"
        return f"exited with code {self.exit_code}"


def instance_ends(
    end: AttemptEnd, plan: Plan, tail: Callable[[int], bytes]
) -> list[InstanceEnd]:
    """Return how each instance ended, in rank order.

    One whose end an elastic job has survived is lost.

    Args:
        tail: Returns the end of an instance's stderr.
    """
    any_exits = {e.rank: e for e in end.events if isinstance(e, Exited)}
    exits = {e.rank: e for e in end.unsurvived_events if isinstance(e, Exited)}
    finalizing = {e.rank: e for e in end.events if isinstance(e, FailedInFinalize)}
    started = {e.rank for e in end.events if isinstance(e, Started)}
    started -= {e.rank for e in end.events if isinstance(e, Refused)}
    with_groups = {e.rank for e in end.events if isinstance(e, TorchGroupsMade)}
    has_several_programs = len(plan.request.programs) > 1
    ends = []
    for rank, assignment in enumerate(plan.assignments):
        exited = exits.get(rank)
        last: Exited | FailedInFinalize | None = finalizing.get(rank)
        state = FAILED if last else LOST if rank in started else NOT_STARTED
        has_failed = exited is not None and exited.by_itself and exited.status != 0
        if exited is not None and (has_failed or last is None):
            last = exited
            state = FAILED if has_failed else SUCCEEDED if exited.by_itself else STOPPED
        if state == LOST:
            last = exited = any_exits.get(rank)
        instance = InstanceEnd(
            rank=rank,
            state=state,
            host=assignment.host.name,
            is_own_host=assignment.facts.is_own_host,
            program=assignment.program.argv,
            program_name=assignment.program.name if has_several_programs else "",
            status=last.status if last else None,
            at_ns=last.at_ns if last else None,
            finalizing=isinstance(last, FailedInFinalize),
            uses_torch_groups=rank in with_groups,
            stdin_advice=plan.request.stdin.advice_for(rank),
            stderr=tail(rank),
        )
        if exited is not None:
            began_ns = end.started_ns.get(rank, exited.at_ns)
            instance = _with_usage(instance, exited, exited.at_ns - began_ns)
        ends.append(instance)
    return ends


def _with_usage(instance: InstanceEnd, exited: Exited, wall_ns: int) -> InstanceEnd:
    return replace(
        instance,
        wall_s=max(0, wall_ns) / 1e9,
        user_s=exited.user_s,
        system_s=exited.system_s,
        peak_kib=exited.peak_kib,
        at_cpu_limit=exited.at_cpu_limit,
        lacks_faulthandler=exited.lacks_faulthandler,
    )
