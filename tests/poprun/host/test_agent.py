"""An agent that gets what makes no sense ends, and with it what it has started."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from conftest import wait_for

from poprun import host as host_package
from poprun.wire import codec, protocol
from poprun.wire.agent_hello import PREAMBLE

ENTRY = Path(host_package.__file__).with_name("agent_entry.py")
JOB = {
    "name": "n1",
    "ranks": [0],
    "num_instances": 1,
    "mark": "NOTHING=1",
    "cache": "",
    "merge_stderr": False,
    "has_mpi": True,
    "grace": 0.1,
    "leftovers": [],
    "stdin_ranks": [],
    "environment": {},
}


@pytest.fixture
def agent() -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", ENTRY, "ssh"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    yield process
    process.kill()
    process.communicate()


def start_job(directory: Path) -> bytes:
    control = f"@poprun-{os.urandom(8).hex()}/key"
    job = json.dumps({**JOB, "directory": str(directory), "control": control}).encode()
    return protocol.pack(protocol.START_JOB, job, b"")


def run_until(
    agent: "subprocess.Popen[bytes]", kind: int
) -> list[tuple[int, list[bytes]]]:
    """Read the agent's messages until one of a kind has come; return them all."""
    assert agent.stdout
    decoder = protocol.Decoder()
    data = b""
    while PREAMBLE not in data:
        data += os.read(agent.stdout.fileno(), 1 << 16)
    received = decoder.feed(data.partition(PREAMBLE)[2])
    while kind not in [k for k, _ in received]:
        piece = os.read(agent.stdout.fileno(), 1 << 16)
        assert piece, "the agent has ended"
        received += decoder.feed(piece)
    return received


NONSENSE = [
    pytest.param(b"\xff" * 100, id="no message"),
    pytest.param(protocol.pack(protocol.DESCRIBE_HOST, b"["), id="no JSON"),
    pytest.param(protocol.pack(protocol.DESCRIBE_HOST), id="no field"),
    pytest.param(protocol.pack(protocol.FIND_PROGRAM, b"[1]"), id="too few parts"),
    pytest.param(protocol.pack(protocol.FIND_PROGRAM, b"[" * 9999), id="deep"),
    pytest.param(protocol.pack(protocol.SIGNAL, b"x"), id="no number"),
    pytest.param(protocol.pack(protocol.SIGNAL, 1, 2, 3), id="too many fields"),
    pytest.param(protocol.pack(protocol.INPUT, 0), id="input without bytes"),
    pytest.param(protocol.pack(protocol.RUN_COMMAND, b""), id="command without text"),
]


# Outlives SIGTERM, and leaves its session and its environment.
DAEMON = b"trap '' TERM; env -i setsid sleep 98765 & sleep 98764"


def run_daemon(agent: "subprocess.Popen[bytes]", directory: Path) -> psutil.Process:
    """Let an agent start a job, and a daemon of mpirun's; return the agent itself.

    What was started as the agent has become its guard then.
    """
    assert agent.stdin
    agent.stdin.write(start_job(directory))
    agent.stdin.write(protocol.pack(protocol.RUN_COMMAND, 1, DAEMON))
    agent.stdin.flush()
    run_until(agent, protocol.JOB_STARTED)
    (served,) = psutil.Process(agent.pid).children()
    wait_for(lambda: len(served.children(recursive=True)) == 3, "the daemon")
    return served


@pytest.mark.parametrize(
    ("command", "is_reported"),
    [
        pytest.param(b"kill -9 $$", True, id="killed"),
        pytest.param(b"sh -c 'kill -9 $$'; exit $?", True, id="below a shell"),
        pytest.param(b"kill $$", False, id="SIGTERM"),
        pytest.param(b"exit 1", False, id="ended by itself"),
    ],
)
def test_a_daemon_that_was_killed_is_reported(
    agent: "subprocess.Popen[bytes]", tmp_path: Path, command: bytes, is_reported: bool
) -> None:
    assert agent.stdin
    agent.stdin.write(start_job(tmp_path / "poprun-job"))
    agent.stdin.write(protocol.pack(protocol.RUN_COMMAND, 1, command))
    agent.stdin.flush()
    received = run_until(agent, protocol.COMMAND_ENDED)

    events = [codec.unpack_json(f[0]) for kind, f in received if kind == protocol.EVENT]
    assert events == ([["DaemonKilled", "n1"]] if is_reported else [])


def test_nothing_stays_when_it_is_killed_before_an_instance_runs(
    agent: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    served = run_daemon(agent, tmp_path / "poprun-job")
    below = served.children(recursive=True)

    served.kill()
    agent.wait(200)

    assert not psutil.wait_procs(below, 0)[1]
    assert not list(tmp_path.iterdir())


def test_nothing_stays_when_its_guard_is_killed(
    agent: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    served = run_daemon(agent, tmp_path / "poprun-job")
    below = served.children(recursive=True)

    agent.kill()

    assert not psutil.wait_procs([served, *below], 200)[1]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("nonsense", NONSENSE)
def test_it_ends_and_undoes_the_job(
    agent: "subprocess.Popen[bytes]", tmp_path: Path, nonsense: bytes
) -> None:
    assert agent.stdin
    directory = tmp_path / "poprun-job"
    below = run_daemon(agent, directory).children(recursive=True)
    assert directory.exists()

    agent.stdin.write(nonsense)
    agent.stdin.flush()
    agent.wait(200)

    assert not directory.exists()
    assert not psutil.wait_procs(below, 0)[1]


def test_a_job_that_makes_no_sense_is_none(agent: "subprocess.Popen[bytes]") -> None:
    assert agent.stdin
    agent.stdin.write(protocol.pack(protocol.START_JOB, b'{"name": 5}', b""))
    agent.stdin.flush()

    assert agent.wait(200) == 0


def test_a_job_that_cannot_be_started_leaves_nothing(
    agent: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    assert agent.stdin
    directory = tmp_path / "poprun-job"
    job = {**JOB, "directory": str(directory), "control": "@" + "x" * 200 + "/key"}
    agent.stdin.write(protocol.pack(protocol.START_JOB, json.dumps(job).encode(), b""))
    agent.stdin.flush()
    run_until(agent, protocol.REFUSAL)

    assert not directory.exists()
