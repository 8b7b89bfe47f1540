"""--summary, --result, --events and --json of real jobs."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from conftest import Poprun, wait_for

import poprun.result

SCHEMAS = Path(poprun.result.__file__).parent / "schemas"
JOB = ("--mpirun", "local", "--num-instances", "2", "--num-replicas", "2")
# Both are up before one of them fails.
FAIL = "echo up; until test $RANK = 0 -o -e go; do sleep 0.02; done; "
FAIL += "test $RANK = 0 || exit 3; exec sleep 600"


def check(name: str, values: list[Any]) -> None:
    schema = json.loads((SCHEMAS / f"{name}.json").read_text())
    validator = jsonschema_rs.validator_for(schema)
    for value in values:
        validator.validate(value)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_failed_job_says_how_it_ended_to_people_and_programs(poprun: Poprun) -> None:
    process = poprun.start(
        *(*JOB, "--grace", "200", "--result", "r", "--events", "e", "sh", "-c", FAIL),
        environ={"POPRUN_SUMMARY": ""},
    )
    assert process.stdout
    assert [process.stdout.readline() for _ in range(2)] == [b"up\n"] * 2
    (poprun.directory / "go").touch()
    _, err = process.communicate(timeout=200)

    assert process.returncode == 3
    summary, cause = err.decode().splitlines()
    assert summary.startswith("poprun: 2 instances: 1 failed (1), 1 stopped (0); ")
    assert cause == "poprun: error: Instance 1 on localhost exited with code 3."
    [result] = lines(poprun.directory / "r")
    check("result", [result])
    assert (result["outcome"], result["exit_code"]) == ("instance_failed", 3)
    assert result["cause"] == cause.removeprefix("poprun: error: ")
    [attempt] = result["attempts"]
    assert [end["state"] for end in attempt["instances"]] == ["stopped", "failed"]
    assert [end["signal"] for end in attempt["instances"]] == ["SIGTERM", None]
    events = lines(poprun.directory / "e")
    check("events", events)
    assert [e["event"] for e in events[:2]] == ["job_started", "attempt_started"]
    assert [e["event"] for e in events[-2:]] == ["attempt_ended", "job_ended"]


def test_events_are_written_while_the_job_runs(poprun: Poprun) -> None:
    path = poprun.directory / "e"
    process = poprun.start(*JOB, "--events", "e", "sleep", "600")
    wait_for(
        lambda: path.exists() and path.read_text().count("instance_started") == 2,
        "both events",
    )
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=200)

    received = [e for e in lines(path) if e["event"] == "signal_received"]
    assert [e["signal"] for e in received] == ["SIGINT"]
    assert lines(path)[-1]["outcome"] == "interrupted"


def test_events_go_to_a_pipe_that_the_caller_reads(poprun: Poprun) -> None:
    reader, writer = os.pipe()
    process = poprun.start(
        *JOB, "--events", f"/dev/fd/{writer}", "true", pass_fds=[writer]
    )
    os.close(writer)
    with open(reader) as file:
        events = [json.loads(line) for line in file]
    process.communicate(timeout=200)

    check("events", events)
    assert events[-1]["event"] == "job_ended"


def test_a_quiet_poprun_shows_errors_alone(poprun: Poprun) -> None:
    script = poprun.script("fail.py", "raise ValueError('no use')\n")
    ran = poprun(*JOB, "-q", "python", script, environ={"POPRUN_HOSTS": "a"})

    assert ran.code == 1
    *program, error = ran.stderr.splitlines()
    assert re.fullmatch(
        r"poprun: error: Instance [01] on localhost exited with code 1: ValueError: no "
        "use",
        error,
    )
    assert set(program) <= {
        "Traceback (most recent call last):",
        f'  File "{poprun.directory / "fail.py"}", line 1, in <module>',
        "    raise ValueError('no use')",
        "ValueError: no use",
    }


def test_a_quiet_poprun_shows_the_summary_that_is_asked_for(poprun: Poprun) -> None:
    ran = poprun(*JOB, "-q", "--summary", "true")

    assert ran.stderr.startswith("poprun: how the instances ended:\n")


def test_a_summary_has_a_line_for_each_instance(poprun: Poprun) -> None:
    ran = poprun(*JOB, "--summary", "true")

    assert ran.code == 0
    title, columns, first, second = ran.stderr.splitlines()
    assert title == "poprun: how the instances ended:"
    assert columns.split() == [
        *("instance", "host", "exit", "wall", "CPU", "peak", "memory")
    ]
    number = r"[0-9.]+"
    for rank, line in enumerate((first, second)):
        assert re.fullmatch(
            rf"    {rank} +localhost +0 +{number} s +{number} s +{number} MiB", line
        )


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("no-such-program",), 127),
        (("--num-replicas", "3", "true"), 2),
        (("--grace", "never", "true"), 2),
    ],
)
def test_a_job_that_is_refused_has_a_result(
    poprun: Poprun, words: tuple[str, ...], code: int
) -> None:
    ran = poprun(*JOB, "--result", "r", *words)

    assert ran.code == code
    [result] = lines(poprun.directory / "r")
    check("result", [result])
    assert (result["outcome"], result["exit_code"]) == ("not_started", code)
    assert result["cause"] in ran.stderr


def test_a_file_that_cannot_be_written_is_refused_before_anything_starts(
    poprun: Poprun,
) -> None:
    ran = poprun(*JOB, "--result", "no/r", "touch", "started")

    assert ran.code == 2
    assert "--result 'no/r' cannot be written: No such file" in ran.stderr
    assert not (poprun.directory / "started").exists()


def test_a_full_disk_changes_neither_the_job_nor_its_exit_code(poprun: Poprun) -> None:
    ran = poprun(*JOB, "--events", "/dev/full", "--result", "r", "true")

    assert ran.code == 0
    assert ran.stderr == (
        "poprun: error: --events /dev/full is incomplete: it cannot be written: No "
        "space left on device.\n"
    )
    assert lines(poprun.directory / "r")[0]["outcome"] == "succeeded"


def test_json_is_the_last_line_of_stdout(poprun: Poprun) -> None:
    ran = poprun(*JOB, "--json", "echo", "hello")

    first, second, result = ran.stdout.splitlines()
    assert (first, second) == ("hello", "hello")
    check("result", [json.loads(result)])


def test_a_dry_run_prints_json(poprun: Poprun) -> None:
    ran = poprun(
        *JOB, "--dry-run", "--json", "echo", b"caf\xe9".decode(errors="surrogateescape")
    )

    value = json.loads(ran.stdout)
    assert value["program"] == ["echo", "caf\\xe9"]
    assert [each["replicas"] for each in value["instances"]] == [[0], [1]]
    assert value["instances"][1]["environment"]["RANK"] == "1"


def test_the_configuration_and_the_version_are_printed_as_json(poprun: Poprun) -> None:
    config = json.loads(poprun(*JOB, "--show-config", "--json", "true").stdout)
    versions = json.loads(poprun("--version", "--json").stdout)

    assert config["num-instances"] == {"value": 2, "origin": "command line"}
    assert config["timeout"] == {"value": None, "origin": "default"}
    assert "poprun" in versions


def test_nothing_secret_of_the_job_is_in_its_files(poprun: Poprun) -> None:
    poprun.environ["MY_TOKEN"] = "canary-4711"
    poprun(*JOB, "--result", "r", "--events", "e", "true")

    written = (poprun.directory / "r").read_text() + (
        poprun.directory / "e"
    ).read_text()
    assert "canary-4711" not in written
    assert "@poprun-" not in written


@pytest.mark.parametrize(
    ("words", "program", "cause"),
    [
        (("--nope", "true"), [], "poprun has no option --nope."),
        (("-n", "x", "true"), ["true"], "-n is 'x', but must be a whole number"),
        ((), [], "The program to run is missing."),
    ],
)
def test_a_mistake_in_an_option_replaces_an_older_result(
    poprun: Poprun, words: tuple[str, ...], program: list[str], cause: str
) -> None:
    for name in ("r", "e"):
        (poprun.directory / name).write_text("old")

    ran = poprun("--result", "r", "--events", "e", *words)

    assert ran.code == 2
    [result], events = lines(poprun.directory / "r"), lines(poprun.directory / "e")
    check("result", [result])
    check("events", events)
    assert (result["outcome"], result["exit_code"]) == ("not_started", 2)
    assert (result["program"], result["job"]) == (program, None)
    assert result["cause"].startswith(cause)
    assert [event["event"] for event in events] == ["job_ended"]
    assert events[0]["cause"] == result["cause"]


# SIGTERM comes before poprun has read its options.
SIGNALLED_EARLY = """
import os, sys
from poprun import __main__, cli
main = cli.main
def late():
    os.kill(os.getpid(), 15)
    return main()
cli.main = late
__main__.main()
"""


def test_an_early_signal_replaces_the_files_of_an_older_job(poprun: Poprun) -> None:
    for name in ("r", "e", "t"):
        (poprun.directory / name).write_text("old")

    files = ("--result", "r", "--events", "e", "--trace", "t")
    ran = subprocess.run(
        [sys.executable, "-c", SIGNALLED_EARLY, *JOB, *files, "touch", "started"],
        cwd=poprun.directory,
        capture_output=True,
        text=True,
    )

    sentence = "Stopped by SIGTERM before any instance was started."
    assert (ran.returncode, ran.stderr) == (143, f"poprun: error: {sentence}\n")
    [result], [event] = lines(poprun.directory / "r"), lines(poprun.directory / "e")
    check("result", [result])
    check("events", [event])
    assert (result["outcome"], result["exit_code"]) == ("interrupted", 143)
    assert result["cause"] == event["cause"] == sentence
    assert "traceEvents" in json.loads((poprun.directory / "t").read_text())
    assert not (poprun.directory / "started").exists()


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (("--json", "--nope", "true"), "poprun has no option --nope."),
        (("--json", "-n", "x", "true"), "-n is 'x', but must be a whole number"),
        (
            ("--dry-run", "--num-instances=2", "--num-replicas=3", "--json", "true"),
            "3 replicas cannot be",
        ),
        (("--json", "--host=a,b", "--hostfile=c", "true"), "--host"),
        (("--json",), "The program to run is missing."),
    ],
)
def test_a_mistake_in_an_option_is_printed_as_json(
    poprun: Poprun, words: tuple[str, ...], cause: str
) -> None:
    ran = poprun(*words)
    [result] = map(json.loads, ran.stdout.splitlines())
    check("result", [result])

    assert (ran.code, result["exit_code"], result["outcome"]) == (2, 2, "not_started")
    assert result["cause"].startswith(cause)
    assert f"poprun: error: {result['cause']}\n" in ran.stderr


def test_a_variable_asks_for_json_too(poprun: Poprun) -> None:
    ran = poprun("--nope", "true", environ={"POPRUN_JSON": "yes"})

    assert json.loads(ran.stdout)["cause"].startswith("poprun has no option --nope.")
    assert poprun("--nope", "true", environ={"POPRUN_JSON": "no"}).stdout == ""


def test_variables_name_the_files_of_a_command_line_that_is_wrong(
    poprun: Poprun,
) -> None:
    poprun("--nope", "true", environ={"POPRUN_RESULT": "~/r", "HOME": "."})

    [result] = lines(poprun.directory / "r")
    assert result["cause"].startswith("poprun has no option --nope.")
