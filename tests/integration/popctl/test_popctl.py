"""popctl with real jobs of one host, and with those who must not control them."""

import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from conftest import BIN, Poprun, wait_for

from poprun.popctl.entry_point import main
from poprun.wire import protocol

POPCTL = str(BIN / "popctl")
# Each instance says that it is up by a file, and ends when there is another.
UNTIL_STOP = """
import os, sys, time
print("instance starts", flush=True)
def wait_for_stop():
    open(f"up.{os.getpid()}", "x").close()
    while not os.path.exists("stop"):
        time.sleep(0.05)
wait_for_stop()
print("done")
"""
STUBBORN = """
import os, signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(f"up.{os.getpid()}", "x").close()
time.sleep(600)
"""


class PopctlJob:
    """A job that a test has started, and what popctl does to it."""

    def __init__(self, poprun: Poprun, program: str, *options: str, size: int = 2):
        script = poprun.script("program.py", program)
        size_words = ("-n", str(size))
        self.process = poprun.start(
            *("--mpirun", "local", "--offline-mode=yes", *size_words, *options),
            *("python", script),
        )
        self.environ = poprun.environ
        self.directory = poprun.directory
        wait_for(lambda: self.view().get("num_running") == size, "the instances")
        up = self.directory.glob
        wait_for(lambda: len(list(up("up.*"))) == size, "the programs")
        self.id = self.view()["id"]

    def view(self) -> dict[str, Any]:
        """Return what `popctl ps` shows of it."""
        views = json.loads(self.popctl("ps", "--json").stdout)
        return next((v for v in views if v.get("pid") == self.process.pid), {})

    def popctl(
        self, *words: str, timeout: float = 200
    ) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [POPCTL, *words],
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def start_popctl(self, *words: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [POPCTL, *words],
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def let_end(self) -> tuple[int, str]:
        """Let the program end; return poprun's exit code and its stderr."""
        (self.directory / "stop").touch()
        _, err = self.process.communicate(timeout=200)
        return self.process.returncode, err.decode()

    def connect(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(f"\0{protocol.CLIENTS_NAME}{self.id}")
        sock.settimeout(200)
        return sock


def test_a_running_job_is_listed_until_it_ends(poprun: Poprun) -> None:
    job = PopctlJob(poprun, UNTIL_STOP)

    view = job.view()
    assert view["program"] == ["python", "program.py"]
    assert view["directory"] == str(poprun.directory)
    assert (view["phase"], view["num_instances"]) == ("running", 2)
    [row] = [r for r in job.popctl("ps").stdout.split("\n") if job.id[:8] in r]
    assert re.fullmatch(
        rf"{job.id[:8]}  +\d+:\d\d  +2  +localhost  +running  +python program\.py *",
        row,
    )

    assert job.id[:8] in job.popctl("ps", "-q").stdout.split("\n")

    assert job.let_end() == (0, "")
    assert job.view() == {}


def test_stop_ends_a_job_as_ctrl_c_does_and_is_named_as_the_cause(
    poprun: Poprun,
) -> None:
    job = PopctlJob(poprun, UNTIL_STOP)

    stopped = job.popctl("stop", job.id[:12])

    assert stopped.returncode == 0
    ended, _, cause = stopped.stdout.partition(". ")
    assert ended == f"Job {job.id[:8]} has ended with exit code 130"
    assert re.fullmatch(r"Stopped by popctl \(PID \d+\)\.\n", cause)
    _, err = job.process.communicate(timeout=200)
    lines = err.decode().rstrip().split("\n")
    assert job.process.returncode == 130
    assert re.fullmatch(r"poprun: error: Stopped by popctl \(PID \d+\)\.", lines[-1])
    assert "KeyboardInterrupt" in lines  # SIGINT, and time to act on it


def test_a_second_stop_kills_what_ignores_the_first(poprun: Poprun) -> None:
    job = PopctlJob(poprun, STUBBORN, "--grace", "600")

    first = job.popctl("stop", job.id, "--no-wait")
    assert first.stdout == f"Job {job.id[:8]} is being stopped.\n"
    wait_for(lambda: job.view()["phase"] == "stopping", "the phase")
    second = job.popctl("stop", job.id)

    assert second.stdout.startswith(f"Job {job.id[:8]} has ended with exit code 130.")
    assert job.process.wait(timeout=200) == 130


def test_what_ignores_sigint_gets_sigterm(poprun: Poprun) -> None:
    text = STUBBORN.replace("SIGTERM, signal.SIG_IGN", "SIGTERM, signal.SIG_DFL")
    job = PopctlJob(poprun, text, "--grace", "600")

    stopped = job.popctl("stop", job.id)

    assert stopped.stdout.startswith(f"Job {job.id[:8]} has ended with exit code 130.")


def test_stop_at_once_needs_no_second(poprun: Poprun) -> None:
    job = PopctlJob(poprun, STUBBORN, "--grace", "600")

    assert job.popctl("stop", "--now", job.id).returncode == 0
    assert job.process.wait(timeout=200) == 130


def test_attach_writes_what_comes_and_leaves_the_job_alone(poprun: Poprun) -> None:
    program = (
        "import os, time\n"
        "rank = os.environ['POPDIST_LOCAL_INSTANCE_INDEX']\n"
        "open(f'up.{rank}', 'x').close()\n"
        "while not os.path.exists('stop'):\n"
        # Whole lines: popctl may begin, and is interrupted, between any two writes.
        "    os.write(1, f'out {rank}\\n'.encode())\n"
        "    os.write(2, f'err {rank}\\n'.encode())\n"
        "    time.sleep(0.05)\n"
    )
    job = PopctlJob(poprun, program)
    client = job.start_popctl("attach", job.id, "1")
    assert client.stdout
    assert client.stderr
    assert {client.stdout.readline() for _ in range(3)} == {"out 1\n"}
    greeting, line = (client.stderr.readline() for _ in range(2))
    client.send_signal(signal.SIGINT)
    _, err = client.communicate(timeout=200)

    assert client.returncode == 130
    assert greeting == (
        f"popctl: Instance 1 of job {job.id[:8]}; Ctrl-C leaves it running.\n"
    )
    assert line == "err 1\n"
    assert set(err.splitlines()) <= {"err 1", ""}  # click ends the line of ^C
    assert job.view()["phase"] == "running"

    to_the_end = job.start_popctl("attach", job.id, "0")
    assert to_the_end.stdout
    to_the_end.stdout.readline()
    job.let_end()
    _, err = to_the_end.communicate(timeout=200)
    assert to_the_end.returncode == 0
    assert err.endswith("popctl: The output of instance 0 has ended.\n")


def test_a_client_that_never_reads_does_not_stop_the_job(poprun: Poprun) -> None:
    program = "print('x' * 999)\n" * 3 + (
        "import os, time\n"
        "open('up.0', 'x').close()\n"
        "while not os.path.exists('begin'): time.sleep(0.05)\n"
        "for _ in range(20000): print('x' * 999)\n"
    )
    job = PopctlJob(poprun, program, "--output-filename", "log:nocopy", size=1)
    sock = job.connect()
    sock.sendall(protocol.pack(protocol.WATCH_OUTPUT, protocol.VERSION, b"", 0))
    (job.directory / "begin").touch()

    assert job.let_end() == (0, "")
    sock.close()
    [log] = (job.directory / "log").rglob("stdout")
    assert log.stat().st_size == 20003 * 1000


def test_dump_writes_the_stacks_of_all_instances(poprun: Poprun) -> None:
    job = PopctlJob(poprun, UNTIL_STOP)

    dumped = job.popctl("dump", "--signal", job.id)
    one = job.popctl("dump", "--signal", job.id, "1")

    assert (dumped.returncode, dumped.stderr) == (0, "")
    heads = re.findall(r"Python stacks of instance (\d) \(PID \d+\):", dumped.stdout)
    assert heads == ["0", "1"]
    assert dumped.stdout.count("in wait_for_stop") == 2
    assert one.stdout.count("in wait_for_stop") == 1
    code, err = job.let_end()
    assert code == 0
    assert err.count("in wait_for_stop") == 3


def test_a_program_without_python_has_no_stacks(poprun: Poprun) -> None:
    process = poprun.start(
        *("--mpirun", "local", "--offline-mode=yes", "-n", "2", "sh", "-c"),
        "while [ ! -e stop ]; do sleep 0.05; done",
    )

    def view() -> dict[str, Any]:
        listed = subprocess.run([POPCTL, "ps", "--json"], capture_output=True)
        views = json.loads(listed.stdout)
        return next((v for v in views if v["pid"] == process.pid), {})

    wait_for(lambda: view().get("num_running") == 2, "the instances")
    dumped = subprocess.run(
        [POPCTL, "dump", "--signal", view()["id"]], capture_output=True, text=True
    )
    (poprun.directory / "stop").touch()

    assert process.wait(timeout=200) == 0
    assert (dumped.returncode, dumped.stdout) == (0, "")
    assert dumped.stderr == (
        "popctl: Instances 0-1 have shown no Python stacks: Python does not run "
        "there, or is stopped.\n"
    )


def test_a_poprun_that_is_stopped_is_listed_as_such(poprun: Poprun) -> None:
    job = PopctlJob(poprun, UNTIL_STOP)
    job.process.send_signal(signal.SIGSTOP)
    try:
        view = job.view()
        refused = job.popctl("stop", job.id)
    finally:
        job.process.send_signal(signal.SIGCONT)

    assert view == {"id": job.id, "pid": job.process.pid, "phase": "no answer"}
    assert refused.returncode == 1
    assert refused.stderr == (
        f"popctl: error: Job {job.id[:8]} does not answer. Its poprun (PID "
        f"{job.process.pid}) may be suspended: see 'ps -o stat'. popctl has "
        "withdrawn its request, so the job will not be stopped later.\n"
    )
    # poprun reads the request before it answers the next one.
    assert job.view()["phase"] == "running"
    assert job.let_end() == (0, "")


def test_noise_and_many_connections_do_not_disturb_a_job(poprun: Poprun) -> None:
    job = PopctlJob(poprun, UNTIL_STOP)
    chance = random.Random(7)
    silent = [job.connect() for _ in range(300)]
    for _ in range(300):
        with job.connect() as sock, contextlib.suppress(OSError):
            kind = chance.randrange(88, 110)
            words = [b"", b"-1", b"0,1", b"7" * 40, chance.randbytes(9)]
            if kind == protocol.STOP_JOB:
                words = [chance.randbytes(3)]
            fields = [b"1", b"", *chance.choices(words, k=chance.randrange(4))]
            noise = chance.randbytes(99)
            sock.sendall(chance.choice([protocol.pack(kind, *fields), noise]))
    for _ in range(16):
        reader = job.connect()
        reader.sendall(protocol.pack(protocol.SHOW_JOB, protocol.VERSION, b"", 1, 1))
        silent.append(reader)
    for sock in silent:
        sock.close()

    wait_for(lambda: job.view().get("phase") == "running", "an answer")
    assert job.let_end() == (0, "")


def popctl_as_nobody(*argv: Sequence[str]) -> list[tuple[int, str]]:
    """Return the exit code and the output of command lines that user 65534 gives."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setresuid(65534, 65534, 65534)
            os.dup2(write, 1)
            os.dup2(write, 2)
            sys.stdout = os.fdopen(1, "w", buffering=1)
            sys.stderr = os.fdopen(2, "w", buffering=1)
            for words in argv:
                code = main(words)
                print(f"exit {code}", flush=True)
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        text = file.read()
    os.waitpid(pid, 0)
    *parts, rest = re.split(r"exit (\d+)\n", text)
    assert rest == ""
    return [(int(c), t) for t, c in zip(parts[::2], parts[1::2], strict=True)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_sees_and_stops_nothing(poprun: Poprun) -> None:
    job = PopctlJob(poprun, UNTIL_STOP)

    none = re.compile(r"popctl: (error: )?No job of user \w+ runs on this machine\.\n")
    listed, stopped, attached, dumped = popctl_as_nobody(
        ["ps"], ["stop", job.id], ["attach", job.id, "0"], ["dump", job.id]
    )

    assert listed[0] == 0
    assert {stopped[0], attached[0], dumped[0]} == {1}
    for _, text in (listed, stopped, attached, dumped):
        assert none.fullmatch(text)
    assert job.view()["phase"] == "running"
    assert job.let_end() == (0, "")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_who_connects_by_hand_is_cut_off(poprun: Poprun) -> None:
    job = PopctlJob(poprun, UNTIL_STOP)
    stop = protocol.pack(protocol.STOP_JOB, protocol.VERSION, b"", 1)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setresuid(65534, 65534, 65534)
            with job.connect() as sock, contextlib.suppress(OSError):
                sock.sendall(stop)
                os.write(write, b"heard " + sock.recv(100))
            os.write(write, b"end")
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    os.close(write)
    answer = os.read(read, 999)
    os.close(read)

    assert answer in (b"end", b"heard end")
    assert job.view()["phase"] == "running"
    assert job.let_end() == (0, "")


def test_a_job_is_stopped_between_two_attempts(poprun: Poprun) -> None:
    process = poprun.start(
        *("--mpirun", "local", "--offline-mode=yes", "--max-restarts", "30"),
        *("sh", "-c", "sleep 0.5; test -e enough || exit 3; exec sleep 600"),
    )

    def views() -> list[dict[str, Any]]:
        listed = subprocess.run([POPCTL, "ps", "--json"], capture_output=True)
        return [v for v in json.loads(listed.stdout) if v["pid"] == process.pid]

    # The waits get longer each time.
    wait_for(lambda: [v["phase"] for v in views()] == ["restarting"], "a wait")
    # On a busy machine it may end before popctl stops the job.
    (poprun.directory / "enough").touch()
    [view] = views()
    stopped = subprocess.run([POPCTL, "stop", view["id"]], capture_output=True)
    _, err = process.communicate(timeout=200)

    assert stopped.returncode == 0
    assert process.returncode == 130
    assert b"Stopped by popctl (PID " in err.splitlines()[-1]
