"""The command of --host-discovery-script: what it prints, and what it must not do."""

import os
import shlex
import signal
from pathlib import Path
from types import FrameType

import pytest

from poprun.errors import HostError, HostUnreachableError, LaunchError, OptionError
from poprun.helpers import processes
from poprun.host_specs import parse_hosts
from poprun.reach import discovery
from poprun.reach.discovery import discover_hosts
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

    with pytest.raises(HostUnreachableError, match="does not end within"):
        discover("sleep 1000")


def test_a_descendant_that_keeps_its_output_open_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(discovery, "LIMIT_S", 0.5)
    pid = tmp_path / "pid"

    with pytest.raises(HostUnreachableError, match="does not end within"):
        discover(f"setsid sleep 1000 & echo $! >{pid}; sleep 1000")
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


def test_a_program_that_does_not_exist_is_named() -> None:
    with pytest.raises(LaunchError, match="/no/such cannot be run"):
        discover_hosts("/no/such", {})
