"""What --result and --events write is what the schemas in the package say."""

import json
import signal
import sys
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

import poprun.result
from poprun.result.formats import (
    EVENT_NAMES,
    OUTCOMES,
    event_object,
    outcome_name,
    stderr_fields,
)
from poprun.result.instances import InstanceEnd
from poprun.result.verdict import Verdict
from poprun.supervise.job_state import Cause, JobState, Reason
from poprun.wire import events as job_events
from poprun.wire.events import Event
from poprun.words import json_text

SCHEMAS = Path(poprun.result.__file__).parent / "schemas"
HEAD = {"time": "2026-01-02T03:04:05.000006Z", "elapsed_s": 1.5, "attempt": 0}
# Events that come too often for a line, or that any user can cause.
NOT_IN_EVENTS = {
    job_events.AcceptFailed,
    job_events.AllMeasured,
    job_events.CanReform,
    job_events.DebuggerInterrupted,
    job_events.DebuggerReady,
    job_events.OutputClosed,
    job_events.PromptOver,
    job_events.PromptShown,
    job_events.ReformAsked,
    job_events.ReformEnded,
    job_events.Rejected,
    job_events.StacksAvailable,
    job_events.Tick,
    job_events.TorchGroupsMade,
    job_events.UsageMeasured,
}
# One of each.
EVENTS = [
    job_events.MpirunStarted(pid=7),
    job_events.MpirunExited(status=3 << 8),
    job_events.MpirunRefused(errno=2, call="posix_spawn()"),
    job_events.GuardLost(host="n1"),
    job_events.Connected(rank=1),
    job_events.Started(rank=1, pid=7, cpus=(0, 1)),
    job_events.Refused(rank=1, errno=2, tried="/bin/x"),
    job_events.Exited(
        rank=1,
        status=signal.SIGKILL,
        at_ns=5,
        user_s=0.5,
        system_s=0.25,
        peak_kib=2048,
        by_itself=True,
    ),
    job_events.FailedInFinalize(rank=1, status=3 << 8, at_ns=5),
    job_events.WaitsInFinalize(rank=1),
    job_events.Clean(rank=1, left_behind=2),
    job_events.Remains(pid=7, user=0, command="sleep", host="n1"),
    job_events.NotUndone(sentence="A file stays.", host="n1"),
    job_events.DevicesLost(sentence="They are gone."),
    job_events.HostLost(host="n1", ranks=(2, 3), why="it does not answer"),
    job_events.HostJoins(host="n1", ranks=(2, 3)),
    job_events.HostLeaves(host="n1", ranks=(2, 3), why="x"),
    job_events.HostsAvailable(
        hosts=("n1:2", "n2"), new_hosts=("n2",), num_running=2, num_instances=4
    ),
    job_events.ShimLost(rank=1),
    job_events.Orphaned(rank=1),
    job_events.DaemonKilled(host="n1"),
    job_events.ShimLeft(rank=1),
    job_events.AloneInMpi(rank=1),
    job_events.Interrupted(signal=signal.SIGINT),
    job_events.SlurmEndsJob(),
    job_events.StacksShown(),
    job_events.StartedAgain(rank=1),
    job_events.MembersChanged(
        generation=1,
        members=(0, 2),
        lost=(1,),
        added=(),
        why="Instance 1 was killed by SIGKILL.",
        seconds=0.5,
    ),
]


def schema(name: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((SCHEMAS / f"{name}.json").read_text())
    return value


def subclasses(base: type) -> set[type]:
    """Return the subclasses that have none of their own."""
    values = vars(sys.modules[base.__module__]).values()
    classes = {c for c in values if isinstance(c, type) and issubclass(c, base)}
    return {c for c in classes - {base} if not c.__subclasses__()}


def test_each_event_of_a_job_has_a_name_or_is_left_out_by_name() -> None:
    assert set(EVENT_NAMES) | NOT_IN_EVENTS == subclasses(Event)
    assert not set(EVENT_NAMES) & NOT_IN_EVENTS
    assert {type(event) for event in EVENTS} == set(EVENT_NAMES)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_has_the_fields_of_the_schema_and_no_others(event: Event) -> None:
    line = event_object(event)
    assert line is not None
    validator = jsonschema_rs.validator_for(schema("events"))

    validator.validate({**HEAD, **json.loads(json.dumps(line))})
    assert set(line) == set(schema("events")["$defs"][line["event"]]["properties"])
    with pytest.raises(jsonschema_rs.ValidationError):
        validator.validate({**HEAD, **line, "event": "another"})


def test_a_status_is_an_exit_code_and_a_signal_by_name() -> None:
    ended = event_object(EVENTS[7])

    assert ended == {
        "event": "instance_ended",
        "instance": 1,
        "exit_code": 137,
        "signal": "SIGKILL",
        "user_s": 0.5,
        "system_s": 0.25,
        "peak_memory_kib": 2048,
        "by_itself": True,
    }


def test_what_any_user_can_cause_without_end_is_no_line() -> None:
    assert event_object(job_events.Rejected(why="it came from user 7")) is None


def test_bytes_that_are_no_characters_are_escaped() -> None:
    assert json_text("caf\udce9 \udcff") == "caf\\xe9 \\xff"


@pytest.mark.parametrize(
    ("cause", "verdict", "name"),
    [
        (None, Verdict(exit_code=0), "succeeded"),
        (None, Verdict(exit_code=74), "output_lost"),
        (
            None,
            Verdict(exit_code=3, first=InstanceEnd(rank=0, state="failed")),
            "instance_failed",
        ),
        (
            Reason.INTERRUPTED,
            Verdict(exit_code=130, sentence="Stopped by SIGINT."),
            "interrupted",
        ),
        (Reason.TIMEOUT, Verdict(exit_code=124, sentence="It took long."), "timed_out"),
        (
            Reason.HOST_LOST,
            Verdict(exit_code=125, sentence="The host is lost."),
            "host_lost",
        ),
        (None, Verdict(exit_code=125, sentence="mpirun ended."), "launcher_failed"),
    ],
)
def test_an_outcome_has_a_name(
    cause: Reason | None, verdict: Verdict, name: str
) -> None:
    reason = None if cause is None else Cause(reason=cause)
    state = JobState(num_instances=1, started=frozenset({0}), cause=reason)

    assert outcome_name(state, verdict) == name


def test_the_schema_has_the_name_of_each_outcome() -> None:
    names = schema("result")["properties"]["outcome"]["enum"]

    attempts = schema("result")["$defs"]["attempt"]["properties"]
    # A job does not end by growing.
    ends = {*OUTCOMES.values()} - {"grew"}
    assert set(names) == {"succeeded", "incomplete", *ends}
    assert set(attempts["outcome"]["enum"]) == {"succeeded", *OUTCOMES.values()}
    assert set(OUTCOMES) == set(Reason)


def test_a_failed_instance_has_the_end_of_its_stderr_in_its_result() -> None:
    traceback = b"Traceback (most recent call last):\nValueError: \x1b[31mno\xff\x00\n"
    before = b"".join(b"%d" % number * 500 + b"\n" for number in range(8)) * 3
    failed = InstanceEnd(rank=1, state="failed", stderr=before + traceback)

    fields = stderr_fields(failed)

    text = "Traceback (most recent call last):\nValueError: no\\xff\x00"
    assert fields["traceback"] == text
    assert fields["stderr_tail"]
    lines = fields["stderr_tail"].split("\n")
    assert (len(lines), max(map(len, lines))) == (20, 400)
    assert fields["stderr_tail"].endswith(f"{'7' * 400}\n{text}")


@pytest.mark.parametrize(
    ("state", "stderr"), [("stopped", b"no data\n"), ("failed", b"")]
)
def test_other_instances_have_no_end_of_their_stderr(state: str, stderr: bytes) -> None:
    end = InstanceEnd(rank=0, state=state, stderr=stderr)

    assert stderr_fields(end) == {"traceback": None, "stderr_tail": None}
