"""popctl dump with a py-spy of the test's own."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import wait_for

from poprun.popctl import dump
from poprun.popctl.dump import command
from poprun.wire import protocol


class FakeConnection:
    """A connection to a job, which remembers what was asked for."""

    def __init__(self) -> None:
        self.requests: list[tuple[int, bytes]] = []

    def send(self, kind: int, field: bytes) -> None:
        self.requests.append((kind, field))

    def close(self) -> None:
        pass


def instance(index: int, **fields: Any) -> dict[str, Any]:
    own = {"index": index, "pid": 100 + index, "is_local": True, "phase": "running"}
    return {**own, **fields}


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> FakeConnection:
    """A job of four instances: one of another host, and one that has ended."""
    fake = FakeConnection()
    job = {
        "id": "cafe",
        "num_instances": 4,
        "instances": [
            *(instance(0), instance(1, is_local=False)),
            *(instance(2, phase="ended", pid=None), instance(3)),
        ],
    }
    monkeypatch.setattr(dump, "choose_job", lambda word: fake)
    monkeypatch.setattr(dump, "show_job", lambda connection: job)
    monkeypatch.setattr(dump, "copy_output", lambda connection: None)
    return fake


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    path = folder / "py-spy"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setattr(dump, "_find_py_spy", lambda: str(path))


def call(*words: str) -> None:
    command.main(list(words), standalone_mode=False)


def test_py_spy_looks_at_what_runs_here_and_the_job_is_asked_for_the_rest(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    connection: FakeConnection,
    capsys: pytest.CaptureFixture[str],
) -> None:
    install(monkeypatch, tmp_path, 'echo "stack of $*"')

    call()

    assert capsys.readouterr().out == (
        "Python stacks of instance 0 (PID 100), by py-spy:\n"
        "stack of dump --pid 100\n\n"
        "Python stacks of instance 3 (PID 103), by py-spy:\n"
        "stack of dump --pid 103\n\n"
    )
    assert connection.requests == [(protocol.DUMP_STACKS, b"1,2")]


WAITS = """
import signal, subprocess, sys
if len(sys.argv) > 1:
    # A child that is no Python, and one that is, in turn with a child.
    for words in (["sleep", "600"], [sys.executable, *sys.argv[:1], *sys.argv[2:]]):
        subprocess.Popen(words)
signal.signal(55, lambda *_: None)
print("ready", flush=True)
signal.pause()
"""


def test_py_spy_looks_at_the_pythons_below_the_program_too(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    connection: FakeConnection,
    capsys: pytest.CaptureFixture[str],
) -> None:
    install(monkeypatch, tmp_path, 'test $3 != "$PROGRAM" || exit 1; echo "of $3"')
    script = tmp_path / "waits.py"
    script.write_text(WAITS)
    program = subprocess.Popen(
        [sys.executable, script, "below", "below"], stdout=subprocess.PIPE, text=True
    )
    assert program.stdout
    monkeypatch.setenv("PROGRAM", str(program.pid))
    job = {
        "id": "cafe",
        "num_instances": 1,
        "instances": [instance(0, pid=program.pid)],
    }
    monkeypatch.setattr(dump, "show_job", lambda connection: job)
    try:
        assert [program.stdout.readline() for _ in range(3)] == ["ready\n"] * 3
        children = psutil.Process(program.pid).children(recursive=True)
        # A program has been started a little before its words are there.
        wait_for(lambda: all(p.cmdline() for p in children), "the words of sleep")
        pythons = sorted(p.pid for p in children if "sleep" not in p.cmdline())
        call("0")
    finally:
        for process in (*psutil.Process(program.pid).children(recursive=True), program):
            process.kill()
        program.wait()
        program.stdout.close()

    assert len(pythons) == 2
    shown = capsys.readouterr()
    # The program itself cannot be looked at; what can is shown.
    assert shown.out == "".join(
        f"Python stacks of instance 0 (PID {pid}), by py-spy:\nof {pid}\n\n"
        for pid in pythons
    )
    assert shown.err == (
        "popctl: py-spy cannot read the stacks of instance 0 (PID "
        f"{program.pid}): exit code 1.\n"
    )
    assert connection.requests == []


def test_where_py_spy_may_not_look_the_job_is_asked(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    connection: FakeConnection,
    capsys: pytest.CaptureFixture[str],
) -> None:
    install(monkeypatch, tmp_path, "echo 'Permission Denied: try sudo' >&2; exit 1")

    call("3")

    assert capsys.readouterr().err == (
        "popctl: py-spy cannot read the stacks of instance 3 (PID 103): "
        "Permission Denied: try sudo\n"
    )
    assert connection.requests == [(protocol.DUMP_STACKS, b"3")]


def test_a_py_spy_that_hangs_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    connection: FakeConnection,
    capsys: pytest.CaptureFixture[str],
) -> None:
    install(monkeypatch, tmp_path, "exec sleep 600")
    monkeypatch.setattr(dump, "PY_SPY_S", 0.1)

    call("0")

    assert (
        "py-spy cannot read the stacks of instance 0 (PID 100): "
        in capsys.readouterr().err
    )
    assert connection.requests == [(protocol.DUMP_STACKS, b"0")]


@pytest.mark.parametrize("is_installed", [True, False])
def test_without_py_spy_the_job_is_asked_for_all(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    connection: FakeConnection,
    is_installed: bool,
) -> None:
    install(monkeypatch, tmp_path, "exit 0")
    if is_installed:
        call("--signal")
    else:
        monkeypatch.setattr(dump, "_find_py_spy", lambda: None)
        call()

    assert connection.requests == [(protocol.DUMP_STACKS, b"0,1,2,3")]
