"""A guard that is started ahead of everything else: what it gets, what it does."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from conftest import wait_for

from poprun.supervise.guard_start import StartedGuard, start_guard
from poprun.wire import protocol

Start = Callable[..., StartedGuard]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start guards, and end those that the test has not ended."""
    started: list[StartedGuard] = []

    def call(environ: dict[str, str] | None = None, **settings: object) -> StartedGuard:
        guard = start_guard(environ or {}, **settings)  # type: ignore[arg-type]
        started.append(guard)
        return guard

    yield call
    for guard in started:
        guard.channel.close()
        os.close(guard.output)
        if psutil.pid_exists(guard.pid):
            os.kill(guard.pid, signal.SIGKILL)
            os.waitpid(guard.pid, 0)


def wait_for_end(guard: StartedGuard) -> int:
    """Return the exit status of a guard that ends by itself."""
    status: list[int] = []

    def has_ended() -> bool:
        pid, code = os.waitpid(guard.pid, os.WNOHANG)
        status.append(code)
        return bool(pid)

    wait_for(has_ended, "the end of the guard")
    return os.waitstatus_to_exitcode(status[-1])


def test_a_guard_that_is_told_nothing_ends_with_poprun(start: Start) -> None:
    guard = start()

    guard.channel.close()

    assert wait_for_end(guard) == 0
    assert os.pread(guard.output, 4096, 0) == b""


def test_orders_that_came_before_the_guard_are_carried_out_without_poprun(
    start: Start, tmp_path: Path
) -> None:
    made = tmp_path / "made"
    (made / "below").mkdir(parents=True)
    orders = protocol.pack(protocol.ADOPT, 0, b"NO_SUCH=1")
    orders += protocol.pack(protocol.END_ACTION, b"remove", os.fsencode(made))

    guard = start(orders=orders)
    guard.channel.close()

    assert wait_for_end(guard) == 0
    assert not made.exists()


def test_orders_that_the_socket_has_no_room_for_are_for_later(start: Start) -> None:
    orders = b"".join(protocol.pack(protocol.KNOWN, n, n) for n in range(100_000))

    guard = start(orders=orders)

    assert 0 < guard.channel.num_unsent < len(orders)


def test_children_from_before_the_exec_are_older_than_the_job(start: Start) -> None:
    child = subprocess.Popen(["sleep", "600"])
    try:
        guard = start()

        assert child.pid in guard.older
        assert guard.pid not in guard.older
    finally:
        child.kill()
        child.wait()


# A poprun that is killed while a child of it has not yet come to its exec.
KILLED_WITH_CHILD = """
import os, signal, sys
from poprun.supervise.guard_start import start_guard
guard = start_guard({})
child = os.fork()
if not child:
    os.kill(os.getpid(), signal.SIGSTOP)
os.waitid(os.P_PID, child, os.WSTOPPED)
print(guard.pid, child, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_child_that_is_stopped_before_its_exec_ends_with_poprun() -> None:
    ran = subprocess.run([sys.executable, "-c", KILLED_WITH_CHILD], capture_output=True)

    for pid in map(int, ran.stdout.split()):
        wait_for(lambda pid=pid: not psutil.pid_exists(pid), f"the end of {pid}")


def test_a_guard_has_the_environment_that_it_is_given_and_speaks_into_a_file(
    start: Start,
) -> None:
    guard = start({"NAME": "value", "": "exec accepts no empty name"})
    process = psutil.Process(guard.pid)
    # The kernel shows a new command line before the new environment.
    wait_for(
        lambda: process.cmdline()[4:5] == ["guard"] and bool(process.environ()),
        "the guard's exec",
    )

    assert process.environ() == {"NAME": "value"}
    files = [os.readlink(f"/proc/{guard.pid}/fd/{number}") for number in range(3)]
    assert files == ["/dev/null", *["/memfd:mpirun (deleted)"] * 2]


def test_a_guard_starts_mpirun_and_tells_how_it_ended(start: Start) -> None:
    guard = start()
    argv = [b"/bin/sh", b"-c", b'echo "$WORD"; exit 7']
    channel = guard.channel
    pipe = os.pipe()
    channel.send(
        protocol.pack(protocol.START, 0, b"MARK=1", 0, len(argv), *argv, b"WORD=said"),
        (guard.output, *pipe),
    )
    came: list[tuple[int, list[bytes]]] = []

    def has_ended() -> bool:
        came.extend(channel.receive() or [])
        return protocol.MPIRUN_EXITED in dict(came)

    wait_for(has_ended, "the end of mpirun")
    for descriptor in pipe:
        os.close(descriptor)
    assert [kind for kind, _ in came] == [
        protocol.MPIRUN_STARTED,
        protocol.MPIRUN_EXITED,
    ]
    assert came[1][1] == [b"%d" % (7 << 8)]
    assert os.pread(guard.output, 99, 0) == b"said\n"
