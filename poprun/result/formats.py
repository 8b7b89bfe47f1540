"""The objects of --result and --events, as their JSON Schemas say. Pure.

A field is added without another version; the version goes up when a field or an event
changes its meaning or is removed.
"""

import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from poprun.errors import OUTPUT_CLOSED, UNWRITTEN, explain_errno
from poprun.helpers.processes import exit_code, signal_name
from poprun.result.instances import FAILED, InstanceEnd
from poprun.result.report import last_lines, stderr_lines, traceback_text
from poprun.result.verdict import Verdict
from poprun.supervise.job_state import JobState, Reason
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
    Reason.GROWTH: "grew",
}


def outcome_name(state: JobState, verdict: Verdict) -> str:
    """Return in one word how an attempt ended."""
    if verdict.first is not None:
        return "instance_failed"
    if not verdict.sentence:
        is_lost = verdict.exit_code in (OUTPUT_CLOSED, UNWRITTEN)
        return "output_lost" if is_lost else "succeeded"
    if state.cause is not None:
        return OUTCOMES[state.cause.reason]
    return "launcher_failed" if state.started else "not_started"


def end_fields(
    outcome: str,
    exit_code: int | None,
    cause: str,
    failed_instance: int | None = None,
) -> dict[str, Any]:
    """Return the fields on the end of a job or of an attempt."""
    return {
        "outcome": outcome,
        "exit_code": exit_code,
        "cause": json_text(cause) or None,
        "failed_instance": failed_instance,
    }


def instance_object(end: InstanceEnd) -> dict[str, Any]:
    return {
        "instance": end.rank,
        "host": json_text(end.host),
        "program": [json_text(word) for word in end.program],
        "state": end.state.replace(" ", "_"),
        "exit_code": end.exit_code,
        "signal": end.signal_name,
        "wall_s": None if end.wall_s is None else round(end.wall_s, 6),
        "user_s": end.user_s,
        "system_s": end.system_s,
        "peak_memory_kib": end.peak_kib,
        **stderr_fields(end),
    }


def stderr_fields(end: InstanceEnd | None) -> dict[str, str | None]:
    """Return what a failed instance wrote last; each field is null if it is empty."""
    lines = []
    if end is not None and end.state == FAILED:
        lines = stderr_lines(end.stderr)
    return {
        "traceback": json_text(traceback_text(lines)) or None,
        "stderr_tail": json_text("\n".join(last_lines(lines))) or None,
    }


def event_object(event: Event) -> dict[str, Any] | None:
    """Return the fields of an event of the job; None if --events has no such one."""
    if type(event) not in EVENT_NAMES:
        return None
    line: dict[str, Any] = {"event": EVENT_NAMES[type(event)]}
    for name, value in asdict(event).items():
        match name:
            case "at_ns" | "at_cpu_limit" | "lacks_faulthandler" | "may_run":
                pass  # the line has a time, and the cause of the job says the rest
            case "is_final":
                pass  # a later line tells whether the instance is started again
            case "status":
                is_killed = os.WIFSIGNALED(value)
                line["exit_code"] = exit_code(value)
                line["signal"] = signal_name(os.WTERMSIG(value)) if is_killed else None
            case "errno":
                line["why"] = explain_errno(value) if value else ""
            case "signal":
                line["signal"] = signal_name(value)
            case "user":
                line["user"] = user_name(value)
            case _:
                text = json_text(value) if isinstance(value, str) else value
                line[FIELDS.get(name, name)] = text
    return line


# The fields of events that have another name in --events.
FIELDS = {"rank": "instance", "ranks": "instances", "peak_kib": "peak_memory_kib"}
# The name in --events of each event of a job. Other events come too often, or any user
# can cause them.
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
    job_events.StartedAgain: "instance_started_again",
    job_events.MembersChanged: "members_changed",
    job_events.DevicesLost: "ipus_lost",
    job_events.HostLost: "host_lost",
    job_events.HostsAvailable: "hosts_available",
    job_events.HostJoins: "host_joins",
    job_events.HostLeaves: "host_leaves",
    job_events.ShimLost: "supervisor_lost",
    job_events.Orphaned: "instance_orphaned",
    job_events.DaemonKilled: "mpirun_daemon_killed",
    job_events.ShimLeft: "supervisor_left",
    job_events.AloneInMpi: "instance_alone_in_mpi",
    job_events.Interrupted: "signal_received",
    job_events.SlurmEndsJob: "slurm_ends_job",
    job_events.StacksShown: "stacks_shown",
}
