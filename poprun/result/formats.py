"""The objects of --result and --events, as their JSON Schemas say. Pure.

A field is added without another version; the version goes up when a field or an event
changes its meaning or is removed.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from poprun.errors import OUTPUT_CLOSED, UNWRITTEN, explain_errno
from poprun.helpers.processes import exit_code, signal_name
from poprun.result.outcome import Outcome
from poprun.result.summary import InstanceEnd
from poprun.supervise.stopping import Course, Reason
from poprun.users import user_name
from poprun.wire import events as job_events
from poprun.wire.events import Event
from poprun.words import json_text

RESULT, EVENTS = "poprun-result", "poprun-events"
VERSION = 1

# The field `outcome`, by the reason for which an attempt stopped; a failed instance
# counts before it.
OUTCOMES = {
    Reason.FAILED: "instance_failed",
    Reason.REFUSED: "not_started",
    Reason.INTERRUPTED: "interrupted",
    Reason.TIMEOUT: "timed_out",
    Reason.START_TIMEOUT: "not_started",
    Reason.OUTPUT_CLOSED: "output_lost",
    Reason.MPIRUN_ENDED: "launcher_failed",
    Reason.SHIM_LOST: "launcher_failed",
    Reason.DEVICES_LOST: "ipus_lost",
    Reason.HOST_LOST: "host_lost",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptResult:
    """One attempt to run the job."""

    number: int
    # One of those of OUTCOMES, or "succeeded".
    outcome: str
    exit_code: int
    cause: str
    failed_instance: int | None
    began: str
    elapsed_s: float
    instances: Sequence[InstanceEnd] = ()


def outcome_name(course: Course, outcome: Outcome) -> str:
    """Return in one word how an attempt ended."""
    if outcome.first is not None:
        return "instance_failed"
    if not outcome.sentence:
        is_lost = outcome.exit_code in (OUTPUT_CLOSED, UNWRITTEN)
        return "output_lost" if is_lost else "succeeded"
    if course.cause is not None:
        return OUTCOMES[course.cause.reason]
    return "launcher_failed" if course.started else "not_started"


def attempt_object(attempt: AttemptResult) -> dict[str, Any]:
    return {
        "attempt": attempt.number,
        "outcome": attempt.outcome,
        "exit_code": attempt.exit_code,
        "cause": json_text(attempt.cause) or None,
        "failed_instance": attempt.failed_instance,
        "began": attempt.began,
        "elapsed_s": attempt.elapsed_s,
        "instances": [_instance_object(end) for end in attempt.instances],
    }


def _instance_object(end: InstanceEnd) -> dict[str, Any]:
    return {
        "instance": end.rank,
        "host": json_text(end.host),
        "program": [json_text(word) for word in end.program],
        "state": end.state.replace(" ", "_"),
        "exit_code": end.exit_code,
        "signal": end.killed_by,
        "wall_s": None if end.wall_s is None else round(end.wall_s, 6),
        "user_s": end.user_s,
        "system_s": end.system_s,
        "peak_memory_kib": end.peak_kib,
        **_stderr_of(end),
    }


def _stderr_of(end: InstanceEnd | None) -> dict[str, Any]:
    """Return what an instance wrote last, each null if there is nothing of it."""
    texts = ("", "") if end is None else (end.traceback, end.stderr_tail)
    names = ("traceback", "stderr_tail")
    return {name: json_text(t) or None for name, t in zip(names, texts, strict=True)}


def attempt_ended_fields(attempt: AttemptResult) -> dict[str, Any]:
    """Return the fields of the event attempt_ended."""
    value = attempt_object(attempt)
    names = ("outcome", "exit_code", "cause", "failed_instance")
    failed = [e for e in attempt.instances if e.rank == attempt.failed_instance]
    end = failed[0] if failed else None
    return {**{name: value[name] for name in names}, **_stderr_of(end)}


def event_object(event: Event) -> dict[str, Any] | None:
    """Return the fields of an event of the job; None if --events has no such one."""
    if type(event) not in EVENT_NAMES:
        return None
    fields = asdict(event)
    if (rank := fields.pop("rank", None)) is not None:
        fields["instance"] = rank
    if "ranks" in fields:
        fields["instances"] = list(fields.pop("ranks"))
    if "status" in fields:
        fields |= _status_fields(fields.pop("status"))
    if "errno" in fields:
        number = fields.pop("errno")
        fields["why"] = explain_errno(number) if number else ""
    if "signal" in fields and isinstance(fields["signal"], int):
        fields["signal"] = signal_name(fields["signal"])
    if "user" in fields:
        fields["user"] = user_name(fields["user"])
    # The times of an event are those of its line; the cause of the job says the other.
    for name in ("at_ns", "at_cpu_limit", "lacks_faulthandler"):
        fields.pop(name, None)
    if "peak_kib" in fields:
        fields["peak_memory_kib"] = fields.pop("peak_kib")
    if "cpus" in fields:
        fields["cpus"] = list(fields["cpus"])
    printable = {
        n: json_text(v) if isinstance(v, str) else v for n, v in fields.items()
    }
    return {"event": EVENT_NAMES[type(event)], **printable}


def _status_fields(status: int) -> dict[str, Any]:
    is_killed = os.WIFSIGNALED(status)
    return {
        "exit_code": exit_code(status),
        "signal": signal_name(os.WTERMSIG(status)) if is_killed else None,
    }


# The name in --events of each event of a job. Those that are not here come too often,
# or any user can cause them.
EVENT_NAMES: Mapping[type[Event], str] = {
    job_events.MpirunStarted: "mpirun_started",
    job_events.MpirunExited: "mpirun_ended",
    job_events.MpirunRefused: "mpirun_refused",
    job_events.GuardLost: "guard_lost",
    job_events.Connected: "instance_connected",
    job_events.Started: "instance_started",
    job_events.Refused: "instance_refused",
    job_events.Exited: "instance_ended",
    job_events.FailedInFinalize: "instance_failed_in_finalize",
    job_events.WaitsInFinalize: "instance_waits_in_finalize",
    job_events.Clean: "instance_clean",
    job_events.Remains: "process_remains",
    job_events.NotUndone: "not_undone",
    job_events.DevicesLost: "ipus_lost",
    job_events.HostLost: "host_lost",
    job_events.ShimLost: "supervisor_lost",
    job_events.Orphaned: "instance_orphaned",
    job_events.DaemonKilled: "mpirun_daemon_killed",
    job_events.ShimLeft: "supervisor_left",
    job_events.AloneInMpi: "instance_alone_in_mpi",
    job_events.Interrupted: "signal_received",
    job_events.SlurmEndsJob: "slurm_ends_job",
    job_events.StacksShown: "stacks_shown",
}
NOT_IN_EVENTS = (
    job_events.AcceptFailed,
    job_events.AllMeasured,
    job_events.DebuggerInterrupted,
    job_events.DebuggerReady,
    job_events.OutputClosed,
    job_events.PromptOver,
    job_events.PromptShown,
    job_events.Rejected,
    job_events.StacksAvailable,
    job_events.Tick,
    job_events.TorchGroupsMade,
    job_events.UsageMeasured,
)
