"""--max-restarts: what is run again, what is kept, and what is left when it ends."""

import json
import os
import re
import signal
import stat
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import Poprun, wait_for
from deaths import command_line

JOB = ("--mpirun", "local", "--num-instances", "2", "--num-replicas", "2")
# Writes what it is told to a file, then fails in the first attempts.
TELLING = """
import json, os, sys
attempt, rank = int(os.environ["POPDIST_RESTART_COUNT"]), int(os.environ["RANK"])
with open(f"told.{attempt}.{rank}", "w") as file:
    json.dump(dict(os.environ), file)
failing = int(sys.argv[1])
if attempt < failing and rank == 1:
    raise ValueError(f"attempt {attempt} is bad")
"""
FAILS_ALWAYS = "raise SystemExit(3)"
AGAIN = "the job will be started again in"


def told(directory: Path, attempt: int) -> dict[str, str]:
    """Return the environment of the instance that fails: the other may not write it."""
    text = (directory / f"told.{attempt}.1").read_text()
    value: dict[str, str] = json.loads(text)
    return value


def result_of(poprun: Poprun) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((poprun.directory / "result").read_text())
    return value


def start_waiting(
    poprun: Poprun, *options: str, restarts: int = 9
) -> "subprocess.Popen[bytes]":
    """Start a job that always fails, and return when it waits for its fifth attempt.

    That wait is long enough for what a test does meanwhile.
    """
    errors = poprun.directory / "errors"
    with errors.open("wb") as file:
        process = poprun.start(
            *(*JOB, *options, "--result", "result"),
            *("--max-restarts", str(restarts), "python", "-c", FAILS_ALWAYS),
            stderr=file,
        )
    wait_for(lambda: f"{AGAIN} 8 s" in errors.read_text(), "the fourth wait")
    return process


def test_a_job_is_run_again_until_it_succeeds(poprun: Poprun) -> None:
    script = poprun.script("telling.py", TELLING)
    ran = poprun(
        *(*JOB, "--max-restarts", "5", "--result", "result", "python", script, "2")
    )

    assert ran.code == 0
    assert ran.stderr.splitlines()[-4:] == [
        "poprun: the attempts of the job:",
        "    attempt 0: Instance 1 on localhost exited with code 1: ValueError: "
        "attempt 0 is bad",
        "    attempt 1: Instance 1 on localhost exited with code 1: ValueError: "
        "attempt 1 is bad",
        "    attempt 2: succeeded",
    ]
    assert [a["outcome"] for a in result_of(poprun)["attempts"]] == [
        "instance_failed",
        "instance_failed",
        "succeeded",
    ]
    assert result_of(poprun)["outcome"] == "succeeded"


def test_what_belongs_to_the_job_is_kept_and_what_belongs_to_an_attempt_is_not(
    poprun: Poprun,
) -> None:
    script = poprun.script("telling.py", TELLING)
    poprun.environ["POPRUN_VIPU_INVENTORY"] = str(poprun.directory / "inventory")
    ran = poprun(*JOB, "--max-restarts", "1", "python", script, "1")

    assert ran.code == 0
    before, after = (told(poprun.directory, attempt) for attempt in (0, 1))
    for name in (
        "POPDIST_JOB_ID",
        "POPDIST_EXECUTABLE_CACHE_PATH",
        "IPUOF_VIPU_API_PARTITION_ID",
    ):
        assert before[name] == after[name]
    for name in (
        "POPDIST_CONTROL",
        "POPDIST_ARENA",
        "POPDIST_ENDED_INSTANCES",
        "POPDIST_RESTART_COUNT",
    ):
        assert before[name] != after[name]


def test_each_attempt_has_a_folder_of_logs_in_that_of_the_run(poprun: Poprun) -> None:
    script = poprun.script("telling.py", TELLING)
    ran = poprun(
        *(*JOB, "--max-restarts", "1", "--log-dir", "logs", "python", script, "1")
    )

    assert ran.code == 0
    latest = poprun.directory / "logs" / "latest"
    assert sorted(path.name for path in latest.iterdir()) == ["attempt-0", "attempt-1"]
    assert "is bad" in (latest / "attempt-0" / "rank.1" / "stderr").read_text()
    assert (latest / "attempt-1" / "rank.1" / "stderr").read_text() == ""


def test_the_last_attempt_decides_on_the_exit_code(poprun: Poprun) -> None:
    program = (
        "import os; raise SystemExit(5 + int(os.environ['POPDIST_RESTART_COUNT']))"
    )
    ran = poprun(*JOB, "--max-restarts", "2", "python", "-c", program)

    assert ran.code == 7
    assert re.search(r"attempt 2: .* code 7\.\n$", ran.stderr)
    assert ran.stderr.count(AGAIN) == 2


def test_a_job_without_a_failure_is_run_once(poprun: Poprun) -> None:
    ran = poprun(*JOB, "--max-restarts", "2", "true")

    assert (ran.code, ran.stderr) == (0, "")


@pytest.mark.parametrize(
    ("options", "program", "code"),
    [
        ((), ("no-such-program",), 127),
        (("--timeout", "0.5"), ("sleep", "60"), 124),
        ((), ("./no-format",), 126),
    ],
)
def test_what_would_fail_again_is_not_run_again(
    poprun: Poprun, options: tuple[str, ...], program: tuple[str, ...], code: int
) -> None:
    path = poprun.directory / "no-format"
    path.write_bytes(b"\x7fELF nonsense")
    path.chmod(stat.S_IRWXU)
    ran = poprun(*JOB, *options, "--max-restarts", "3", *program)

    assert ran.code == code
    assert AGAIN not in ran.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_job_that_the_user_ends_is_not_run_again(
    poprun: Poprun, number: signal.Signals
) -> None:
    process = poprun.start(
        *(*JOB, "--max-restarts", "3"),
        *("sh", "-c", "touch ready.$RANK; exec sleep 600"),
    )
    for rank in range(2):
        wait_for((poprun.directory / f"ready.{rank}").exists, "an instance")
    process.send_signal(number)
    _, err = process.communicate(timeout=200)

    assert process.returncode == 128 + number
    assert AGAIN not in err.decode()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_between_two_attempts_ends_the_job_at_once(
    poprun: Poprun, number: signal.Signals
) -> None:
    process = start_waiting(poprun)
    process.send_signal(number)

    assert process.wait(timeout=200) == 128 + number
    errors = (poprun.directory / "errors").read_text()
    assert errors.endswith(
        f"    attempt 4: not started: Stopped by {number.name} before attempt 4 was "
        "started.\n"
    )
    result = result_of(poprun)
    assert (result["outcome"], len(result["attempts"])) == ("interrupted", 4)


def test_nothing_is_left_of_a_poprun_that_is_killed_between_two_attempts(
    poprun: Poprun,
) -> None:
    inventory = str(poprun.directory / "inventory")
    poprun.environ["POPRUN_VIPU_INVENTORY"] = inventory
    process = start_waiting(poprun, "--offline-mode", "no")
    process.kill()
    process.wait()

    def has_partitions() -> bool:
        listed = subprocess.run(
            ["vipu", "list", "partitions"],
            env=poprun.environ,
            capture_output=True,
            text=True,
            check=False,
        )
        return "poprun-" in listed.stdout

    wait_for(lambda: not has_partitions(), "the partition to be removed")


def test_a_guard_that_is_killed_between_two_attempts_is_replaced(
    poprun: Poprun,
) -> None:
    process = start_waiting(poprun, restarts=4)
    # Those of the attempts before have ended, and have no command lines.
    children = psutil.Process(process.pid).children()
    guards = [child for child in children if "guard" in command_line(child.pid)]
    for guard in guards:
        guard.kill()
    assert len(guards) == 1

    assert process.wait(timeout=200) == 3
    errors = (poprun.directory / "errors").read_text()
    assert "poprun's guard was killed; another takes its place." in errors
    assert len(result_of(poprun)["attempts"]) == 5


def test_the_timeout_is_for_all_attempts_together(poprun: Poprun) -> None:
    program = "test $POPDIST_RESTART_COUNT = 1 || exit 3; sleep 600"
    ran = poprun(*JOB, "--timeout", "8", "--max-restarts", "9", "sh", "-c", program)

    assert ran.code == 124
    assert "The job took longer than the 8 s of --timeout" in ran.stderr


def test_input_that_can_be_read_once_only_is_refused(poprun: Poprun) -> None:
    ran = poprun(*JOB, "--max-restarts", "1", "--stdin", "all", "cat")

    assert ran.code == 2
    assert "--max-restarts 1 and --stdin exclude each other" in ran.stderr
    assert "--stdin FILE" in ran.stderr


def test_a_file_as_input_is_read_by_each_attempt(poprun: Poprun) -> None:
    (poprun.directory / "input").write_text("hello\n")
    program = "cat; test $POPDIST_RESTART_COUNT = 1"
    ran = poprun(
        *("--mpirun", "local", "--max-restarts", "1", "--stdin", "input"),
        *("sh", "-c", program),
    )

    assert (ran.code, ran.stdout) == (0, "hello\nhello\n")


def kind_of(words: list[str]) -> str:
    """Return which part of a job has this command line."""
    if words[:1] == ["sleep"]:
        return "instance"
    if ":" in words:
        return "mpirun"
    return "shim" if words[4:5] == ["shim"] else ""


@pytest.mark.mpi
@pytest.mark.parametrize("victim", ["instance", "shim", "mpirun"])
def test_a_part_of_the_job_that_is_killed_is_a_failure(
    poprun: Poprun, every_mpirun: str, victim: str
) -> None:
    program = (
        "touch ready.$POPDIST_RESTART_COUNT.$RANK; "
        "test $POPDIST_RESTART_COUNT = 1 || exec sleep 98765.4321"
    )
    process = poprun.start(
        *("--mpirun", every_mpirun, "-n", "2", "--max-restarts", "1"),
        *("sh", "-c", program),
    )
    for rank in range(2):
        wait_for((poprun.directory / f"ready.0.{rank}").exists, "an instance")

    def pids() -> list[int]:
        below = psutil.Process(process.pid).children(recursive=True)
        return [p.pid for p in below if kind_of(command_line(p.pid)) == victim]

    wait_for(lambda: bool(pids()), f"the {victim}")
    os.kill(pids()[0], signal.SIGKILL)
    _, err = process.communicate(timeout=200)

    assert process.returncode == 0, err
    assert AGAIN in err.decode()
    assert err.endswith(b"    attempt 1: succeeded\n")


@pytest.mark.mpi
def test_an_mpi_job_finds_its_ranks_in_each_attempt(
    poprun: Poprun, every_mpirun: str
) -> None:
    script = poprun.script(
        "ranks.py",
        "import os\n"
        "from mpi4py import MPI\n"
        "total = MPI.COMM_WORLD.allreduce(1)\n"
        "attempt = int(os.environ['POPDIST_RESTART_COUNT'])\n"
        # Whole, also if it is killed meanwhile.
        "os.write(1, f'{attempt} {total}\\n'.encode())\n"
        "if attempt < 1: MPI.COMM_WORLD.Abort(4)\n",
    )
    ran = poprun(
        *("--mpirun", every_mpirun, "-n", "2", "--max-restarts", "1"),
        *("python", script),
    )

    assert ran.code == 0
    assert ran.stdout.splitlines()[-2:] == ["1 2", "1 2"]
