"""Where the Python programs of a job are when it takes too long, or SIGQUIT comes."""

import re
import signal

import pytest
from conftest import Poprun, Ran

# Two threads that say that they are up where their stacks are to show them.
WAITING = """import os, threading, time
def {name}():
    os.write(1, b"up\\n")
    time.sleep(600)
threading.Thread(target={name}, daemon=True).start()
{name}()
"""
LABEL = re.compile(r"poprun: Python stacks of instance (\d) \(PID \d+\):\n")
TWO = ("--mpirun", "local", "--num-instances", "2", "--num-replicas", "2")


def blocks(stderr: str) -> list[tuple[str, str]]:
    """Return each label's instance, and what follows it."""
    _, *rest = LABEL.split(stderr)
    return list(zip(rest[::2], rest[1::2], strict=True))


def run_to_the_timeout(
    poprun: Poprun, options: list[str], *program: str, ups: int = 4
) -> Ran:
    """Run a job until its timeout, which is one that all threads are up before."""
    seconds = 4
    while True:
        ran = poprun(*options, "--timeout", str(seconds), *program)
        if ran.stdout.count("up\n") == ups:
            return ran
        seconds *= 4


def test_at_the_timeout_each_instance_shows_its_own_stacks(poprun: Poprun) -> None:
    for rank in range(2):
        poprun.script(f"{rank}.py", WAITING.format(name=f"wait_in_{rank}"))

    ran = run_to_the_timeout(poprun, [*TWO], "sh", "-c", "exec python $RANK.py")

    assert ran.code == 124
    shown = blocks(ran.stderr)
    assert [rank for rank, _ in shown] == ["0", "1"]
    for rank, text in shown:
        own, other = f"in wait_in_{rank}\n", f"in wait_in_{1 - int(rank)}\n"
        assert text.count(own) == 2
        assert other not in text


def test_a_child_shows_its_stacks_and_what_is_no_python_is_not_killed(
    poprun: Poprun,
) -> None:
    poprun.script("wait.py", WAITING.format(name="wait_below"))
    # Its death by a signal would end the script before its time.
    script = "python wait.py & sleep 600; echo lost"

    ran = run_to_the_timeout(poprun, [*TWO, "--grace", "0.3"], "sh", "-c", script)

    assert (ran.code, "lost" in ran.stdout) == (124, False)
    assert sorted(rank for rank, _ in blocks(ran.stderr)) == ["0", "1"]
    assert ran.stderr.count("in wait_below\n") == 4


def test_sigquit_shows_them_too(poprun: Poprun) -> None:
    poprun.script("wait.py", WAITING.format(name="wait_here"))
    process = poprun.start(*TWO, "python", "wait.py")
    assert process.stdout
    assert [process.stdout.readline() for _ in range(4)] == [b"up\n"] * 4
    process.send_signal(signal.SIGQUIT)
    _, err = process.communicate(timeout=200)

    assert process.returncode == 131
    assert [rank for rank, _ in blocks(err.decode())] == ["0", "1"]


@pytest.mark.mpi
def test_ranks_show_them_under_every_mpi(poprun: Poprun, every_mpirun: str) -> None:
    script = """from mpi4py import MPI
world = MPI.COMM_WORLD
def wait_for_a_message():
    print("up", flush=True)
    world.recv(source=1 - world.Get_rank())
wait_for_a_message()
"""
    options = ["--mpirun", every_mpirun, *TWO[2:], "--grace", "0.5"]

    ran = run_to_the_timeout(
        poprun, options, "python", poprun.script("wait.py", script), ups=2
    )

    assert ran.code == 124
    shown = blocks(ran.stderr)
    assert [rank for rank, _ in shown] == ["0", "1"]
    assert all("in wait_for_a_message\n" in text for _, text in shown)


def test_a_late_signal_for_stacks_ends_no_program(poprun: Poprun) -> None:
    # After the end of Python, as in MPI_Finalize, nothing shows stacks any more.
    script = """import atexit, faulthandler, os
from poprun.wire.protocol import STACKS_SIGNAL
faulthandler.unregister(STACKS_SIGNAL)
os.kill(os.getpid(), STACKS_SIGNAL)
print("lived", flush=True)
"""

    ran = poprun(*TWO, "python", poprun.script("late.py", script))

    assert (ran.code, ran.stdout, ran.stderr) == (0, "lived\nlived\n", "")
