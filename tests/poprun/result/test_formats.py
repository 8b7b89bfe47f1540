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
    NOT_IN_EVENTS,
    OUTCOMES,
    event_object,
    outcome_name,
)
from poprun.result.outcome import Failed, Outcome
from poprun.supervise.stopping import Cause, Course, Reason
from poprun.wire import events as job_events
from poprun.wire.events import Event
from poprun.words import json_text

SCHEMAS = Path(poprun.result.__file__).parent / "schemas"
HEAD = {"time": "2026-01-02T03:04:05.000006Z", "elapsed_s": 1.5, "attempt": 0}
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
    job_events.ShimLost(rank=1),
    job_events.Orphaned(rank=1),
    job_events.DaemonKilled(host="n1"),
    job_events.ShimLeft(rank=1),
    job_events.AloneInMpi(rank=1),
    job_events.Interrupted(signal=signal.SIGINT),
    job_events.SlurmEndsJob(),
    job_events.StacksShown(),
]


def schema(name: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((SCHEMAS / f"{name}.json").read_text())
    return value


def subclasses(base: type) -> set[type]:
    values = vars(sys.modules[base.__module__]).values()
    classes = {c for c in values if isinstance(c, type) and issubclass(c, base)}
    return classes - {base}


def test_each_event_of_a_job_has_a_name_or_is_left_out_by_name() -> None:
    assert set(EVENT_NAMES) | set(NOT_IN_EVENTS) == subclasses(Event)
    assert not set(EVENT_NAMES) & set(NOT_IN_EVENTS)
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
    ("cause", "outcome", "name"),
    [
        (None, Outcome(exit_code=0), "succeeded"),
        (None, Outcome(exit_code=74), "output_lost"),
        (
            None,
            Outcome(exit_code=3, first=Failed(rank=0, status=3 << 8, at_ns=0)),
            "instance_failed",
        ),
        (
            Reason.INTERRUPTED,
            Outcome(exit_code=130, sentence="Stopped by SIGINT."),
            "interrupted",
        ),
        (Reason.TIMEOUT, Outcome(exit_code=124, sentence="It took long."), "timed_out"),
        (
            Reason.HOST_LOST,
            Outcome(exit_code=125, sentence="The host is lost."),
            "host_lost",
        ),
        (None, Outcome(exit_code=125, sentence="mpirun ended."), "launcher_failed"),
    ],
)
def test_an_outcome_has_a_name(
    cause: Reason | None, outcome: Outcome, name: str
) -> None:
    reason = None if cause is None else Cause(reason=cause)
    course = Course(num_instances=1, started=frozenset({0}), cause=reason)

    assert outcome_name(course, outcome) == name


def test_the_schema_has_the_name_of_each_outcome() -> None:
    names = schema("result")["properties"]["outcome"]["enum"]

    assert set(names) == {"succeeded", "incomplete", *OUTCOMES.values()}
    assert set(OUTCOMES) == set(Reason)
