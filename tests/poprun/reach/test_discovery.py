"""The command of --host-discovery-script: what it prints, and what it must not do."""

import os
import re
import shlex
import signal
from pathlib import Path
from types import FrameType

import pytest

from poprun.errors import (
    HostError,
    HostUnreachableError,
    LaunchError,
    OptionError,
    SlurmError,
)
from poprun.helpers import processes
from poprun.host_specs import parse_hosts
from poprun.plan.slurm import SlurmJob
from poprun.reach import discovery
from poprun.reach.discovery import ask_slurm, discover_hosts
from poprun.run.restarts import StoppedError


def discover(script: str) -> object:
    return discover_hosts(shlex.join(["sh", "-c", script]), os.environ)


def test_each_line_is_a_host_with_its_slots() -> None:
    hosts = discover("echo a:2; echo; echo 'node[0-1] slots=3'; echo alice@c")

    assert hosts == parse_hosts("a:2,node0:3,node1:3,alice@c")


def test_words_and_variables_of_the_command_are_those_of_a_shell() -> None:
    hosts = discover_hosts("sh -c 'echo $0-$NODE' 'a' ", {**os.environ, "NODE": "b"})

    assert hosts == parse_hosts("a-b")


@pytest.mark.parametrize(
    ("script", "error", "message"),
    [
        ("echo no >&2; exit 3", HostUnreachableError, "code 3. It says: 'no'"),
        ("kill -9 $$", HostUnreachableError, "was killed by SIGKILL. It must print"),
        ("true", HostUnreachableError, "prints no host. It must print"),
        ("echo a,b", HostError, "--host-discovery-script:1:1: .* a comma"),
        ("echo a; echo a", HostError, "is listed twice"),
    ],
)
def test_what_is_wrong_with_its_output_is_said(
    script: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        discover(script)


def test_it_is_killed_when_it_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "LIMIT_S", 0.01)

    with pytest.raises(HostUnreachableError, match="does not end and close its output"):
        discover("sleep 1000")


def test_it_is_killed_when_it_prints_too_much() -> None:
    with pytest.raises(HostUnreachableError, match="prints more than 16 MiB") as flood:
        discover("yes a:2; echo no >&2")
    with pytest.raises(HostUnreachableError, match="prints more than 16 MiB"):
        discover("head -c 20000000 /dev/zero")

    assert len(str(flood.value)) < 1000


def test_a_descendant_that_keeps_its_output_open_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pid = tmp_path / "pid"
    problem = "does not end and close its output"
    # It tells its number once it is out of reach of what ends the command's group.
    descendant = f"echo $$ >{pid}.$$; mv {pid}.$$ {pid}; exec sleep 1000"

    seconds = 0.5
    # Until it is long enough for the command to begin.
    while not pid.exists():
        monkeypatch.setattr(discovery, "LIMIT_S", seconds)
        with pytest.raises(HostUnreachableError, match=problem):
            discover(f"setsid sh -c '{descendant}' & sleep 1000")
        seconds *= 2
    os.kill(int(pid.read_text()), signal.SIGKILL)


def test_a_signal_ends_it_at_once(tmp_path: Path) -> None:
    pid = tmp_path / "pid"

    def stop(number: int, frame: FrameType | None) -> None:
        # Only the guard can end a command that has just been started.
        while frame is not None and frame.f_code.co_name != "communicate":
            frame = frame.f_back
        if frame is not None:
            raise StoppedError(number)

    before = signal.signal(signal.SIGUSR1, stop)
    script = f"echo $$ >{pid}; while kill -USR1 $PPID; do sleep 0.1; done"
    try:
        with pytest.raises(StoppedError):
            discover(script)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert processes.process(int(pid.read_text())) is None


@pytest.mark.parametrize("text", ["", "'"])
def test_a_command_has_a_program(text: str) -> None:
    with pytest.raises(OptionError, match="is not a command"):
        discover_hosts(text, {})


def test_the_current_directory_may_be_deleted_while_a_job_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "job"
    directory.mkdir()
    monkeypatch.chdir(directory)
    directory.rmdir()

    assert discover("echo a") == parse_hosts("a")


def test_a_program_that_does_not_exist_is_named() -> None:
    with pytest.raises(LaunchError, match="There is no program '/no/such'"):
        discover_hosts("/no/such", {})


@pytest.mark.parametrize(
    ("text", "mode", "reason"),
    [
        ("#!/bin/sh\n", 0o644, "{} is not executable; make it executable with: chmod "),
        ("#!/bin/sh\r\n", 0o755, "The first line of '{}' names .* with: dos2unix"),
    ],
)
def test_a_script_that_cannot_be_run_is_explained(
    tmp_path: Path, text: str, mode: int, reason: str
) -> None:
    script = tmp_path / "hosts"
    script.write_text(text)
    script.chmod(mode)

    with pytest.raises(LaunchError) as refusal:
        discover_hosts(str(script), {})

    sentence = (
        "--host-discovery-script must name an executable file, such as a script that "
        "begins with #!/bin/sh. "
    )
    assert re.match(f"{sentence}{reason.format(script)}", str(refusal.value))


def test_a_script_in_the_current_directory_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "hosts"
    script.write_text("#!/bin/sh\necho $1\n")
    script.chmod(0o755)
    monkeypatch.chdir(tmp_path)

    assert discover_hosts("hosts a:2", {}) == parse_hosts("a:2")


SLURM_JOB = SlurmJob(job_id="7", nodes=parse_hosts("n1"))


def ask_squeue(directory: Path, script: str) -> object:
    """Ask a squeue that is a shell script."""
    squeue = directory / "squeue"
    squeue.write_text(f"#!/bin/sh\n{script}\n")
    squeue.chmod(0o755)
    return ask_slurm(SLURM_JOB, {"PATH": str(directory), "SQUEUE_USERS": "bob"})


def test_squeue_is_asked_for_the_nodes_of_the_job(tmp_path: Path) -> None:
    script = 'echo "7 n[1-2]"; echo "$# $*$SQUEUE_USERS" >&2; exit $GIVEN'

    assert ask_squeue(tmp_path, script) == parse_hosts("n1,n2")
    with pytest.raises(SlurmError, match="'3 --noheader --jobs=7 --format=%A %N'"):
        ask_squeue(tmp_path, f"GIVEN=1; {script}")


def test_without_squeue_the_nodes_are_those_at_the_start(tmp_path: Path) -> None:
    assert ask_slurm(SLURM_JOB, {"PATH": str(tmp_path)}) == SLURM_JOB.nodes


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("echo no answer >&2; exit 1", "It exits with code 1. It says: 'no answer'."),
        ("true", "It prints no host."),
        ("echo 8 n1", "It lists no nodes of job 7."),
    ],
)
def test_a_squeue_that_fails_is_quoted(
    tmp_path: Path, script: str, problem: str
) -> None:
    with pytest.raises(SlurmError) as caught:
        ask_squeue(tmp_path, script)

    beginning = "squeue does not say which nodes Slurm's job 7 has now."
    assert str(caught.value) == f"{beginning} {problem}"


def test_a_squeue_that_cannot_be_started_is_an_error_of_slurm(tmp_path: Path) -> None:
    (tmp_path / "squeue").write_bytes(b"\0")
    (tmp_path / "squeue").chmod(0o755)

    with pytest.raises(SlurmError, match="squeue cannot be run"):
        ask_slurm(SLURM_JOB, {"PATH": str(tmp_path)})
