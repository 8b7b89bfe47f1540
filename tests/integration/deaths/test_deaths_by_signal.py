"""What a user sends to poprun, what outlives its parent, and what takes too long."""

import signal
import subprocess
import sys
from pathlib import Path

import pexpect
import psutil
import pytest
from conftest import POPRUN, Poprun, wait_for
from deaths import Doomed, command_line, is_alive

from tests.terminals import kill

pytestmark = pytest.mark.mpi


def job(mpirun: str, size: int, *options: str) -> list[str]:
    shape = ["--num-instances", str(size), "--num-replicas", str(size)]
    return ["--mpirun", mpirun, *shape, *options]


def acknowledged(name: str) -> str:
    return (
        f"poprun: {name}: stopping the instances; repeat to kill them.\n"
        f"poprun: error: Stopped by {name}.\n"
    )


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, 130),
        (signal.SIGTERM, 143),
        (signal.SIGHUP, 129),
        (signal.SIGQUIT, 131),
    ],
    ids=["INT", "TERM", "HUP", "QUIT"],
)
def test_a_signal_ends_the_job_and_its_grandchildren(
    poprun: Poprun, every_mpirun: str, number: signal.Signals, code: int
) -> None:
    job = Doomed(poprun, every_mpirun, "crowd", "--grace", "0.3")

    job.kill("poprun", number)

    assert job.end() == (code, acknowledged(number.name))
    job.assert_nothing_is_left()


def test_ctrl_c_ends_ranks_that_wait_for_each_other(
    poprun: Poprun, every_mpirun: str
) -> None:
    job = Doomed(poprun, every_mpirun, "ranks", "--grace", "0.3")

    job.kill("poprun", signal.SIGINT)

    code, words = job.end()
    assert code == 130
    assert words.endswith("poprun: error: Stopped by SIGINT.\n")
    job.assert_nothing_is_left()


def test_the_second_ctrl_c_does_not_wait(poprun: Poprun, every_mpirun: str) -> None:
    job = Doomed(poprun, every_mpirun, "crowd", "--grace", "600")

    job.kill("poprun", signal.SIGINT)
    # Before that is said, the kernel may make one signal of two.
    assert job.process.stderr
    assert job.process.stderr.readline() == (
        b"poprun: SIGINT: stopping the instances; repeat to kill them.\n"
    )
    job.kill("poprun", signal.SIGINT)

    assert job.end() == (
        130,
        "poprun: SIGINT again: killing everything.\n"
        "poprun: error: Stopped by SIGINT.\n",
    )
    job.assert_nothing_is_left()


def test_ctrl_c_on_a_terminal(poprun: Poprun, openmpi5: str) -> None:
    program = ("sh", "-c", "echo ready $RANK; exec sleep 600")
    words = [*job(openmpi5, 2, "--color=never"), *program]
    terminal = pexpect.spawn(
        POPRUN,
        words,
        env=poprun.environ,
        cwd=str(poprun.directory),
        encoding="utf-8",
        timeout=200,
    )
    try:
        terminal.expect("ready")
        terminal.expect("ready")
        terminal.sendintr()
        terminal.expect("SIGINT: stopping the instances; repeat to kill them.\r\n")
        terminal.expect("poprun: error: Stopped by SIGINT.\r\n")
        terminal.expect(pexpect.EOF)
        terminal.wait()
    finally:
        kill(terminal)

    assert terminal.exitstatus == 130


def test_ranks_may_say_farewell_within_the_grace(
    poprun: Poprun, every_mpirun: str
) -> None:
    script = (
        "trap 'sleep 0.7; echo saved; exit 0' INT; touch up.$RANK; sleep 600 & wait"
    )
    process = poprun.start(
        *job(every_mpirun, 2, "--grace", "600"), *("sh", "-c", script)
    )
    wait_for(lambda: len(list(poprun.directory.glob("up.*"))) == 2, "the ranks")

    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=200)

    assert (process.returncode, out) == (130, b"saved\nsaved\n")


# No shell: one that starts a command by vfork cannot be stopped until the command runs.
UNTIL_GO = """
import os, time
rank = os.environ["RANK"]
with open("pid." + rank, "w") as file:
    file.write(str(os.getpid()))
os.rename("pid." + rank, "up." + rank)
while not os.path.exists("go"):
    time.sleep(0.05)
print("done")
"""


def test_what_is_stopped_for_a_while_goes_on(poprun: Poprun, every_mpirun: str) -> None:
    process = poprun.start(*job(every_mpirun, 2), sys.executable, "-c", UNTIL_GO)
    up = [poprun.directory / f"up.{rank}" for rank in range(2)]
    wait_for(lambda: all(path.exists() for path in up), "the ranks")
    ranks = [psutil.Process(int(path.read_text())) for path in up]

    process.send_signal(signal.SIGTSTP)
    stopped = [psutil.Process(process.pid), *ranks]
    wait_for(lambda: {p.status() for p in stopped} == {psutil.STATUS_STOPPED}, "stop")
    (poprun.directory / "go").touch()
    process.send_signal(signal.SIGCONT)
    out, _ = process.communicate(timeout=200)

    assert (process.returncode, out) == (0, b"done\ndone\n")


COUNT = """
import os, signal, sys, time
if os.environ["RANK"] == "1":
    sys.exit()
def count(number, _):
    print(signal.Signals(number).name)
    open(f"{number}." + os.environ["RANK"], "x")
for number in (signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, count)
open("up." + os.environ["RANK"], "x")
while not os.path.exists("end"):
    time.sleep(0.05)
"""


def test_user_signals_reach_every_live_rank_once(
    poprun: Poprun, every_mpirun: str
) -> None:
    process = poprun.start(
        *job(every_mpirun, 3, "-vv"),
        *("python", poprun.script("count.py", COUNT)),
    )
    assert process.stderr
    while b"Instance 1 ended with" not in process.stderr.readline():
        assert process.poll() is None
    wait_for(lambda: len(list(poprun.directory.glob("up.*"))) == 2, "the ranks")

    for number in (signal.SIGUSR1, signal.SIGUSR2):
        process.send_signal(number)
        pattern = f"{number:d}.*"
        wait_for(lambda: len(list(poprun.directory.glob(pattern))) == 2, pattern)  # noqa: B023
    (poprun.directory / "end").touch()
    out, _ = process.communicate(timeout=200)

    assert process.returncode == 0
    counted = sorted(line for line in out.split() if line.startswith(b"SIG"))
    assert counted == [b"SIGUSR1", b"SIGUSR1", b"SIGUSR2", b"SIGUSR2"]


@pytest.mark.parametrize("name", ["INT", "QUIT", "HUP"])
def test_a_signal_that_the_caller_ignores_ends_nothing(
    poprun: Poprun, openmpi5: str, name: str
) -> None:
    # A script's background job is in the terminal's process group.
    number = signal.Signals[f"SIG{name}"]
    ignoring = ["env", f"--ignore-signal={name}", POPRUN]
    script = f"touch up.$RANK; until [ -e go ]; do sleep 0.05; done; kill -{name} $$"
    process = subprocess.Popen(
        [*ignoring, *job(openmpi5, 2), "sh", "-c", f"{script}; echo done"],
        cwd=poprun.directory,
        env=poprun.environ,
        stdout=subprocess.PIPE,
    )
    wait_for(lambda: len(list(poprun.directory.glob("up.*"))) == 2, "the ranks")

    process.send_signal(number)
    (poprun.directory / "go").touch()
    out, _ = process.communicate(timeout=200)

    assert (process.returncode, out) == (0, b"done\ndone\n")


def nested(poprun: Poprun, grace: str) -> "subprocess.Popen[bytes]":
    inner = [POPRUN, *job("local", 2), "--grace", "60", "sh", "inner.sh"]
    poprun.script(
        "inner.sh", "trap '' TERM INT; touch up.$$; while :; do sleep 1; done"
    )
    process = poprun.start(*job("local", 1), "--grace", grace, *inner)
    wait_for(lambda: len(list(poprun.directory.glob("up.*"))) == 2, "the inner ranks")
    return process


def directories_of(process: psutil.Process) -> set[Path]:
    shims = [
        command_line(p.pid)[5] for p in process.children(recursive=True) if is_shim(p)
    ]
    places = [Path("/dev/shm"), Path("/tmp")]
    named = {place / f"poprun-{name}" for place in places for name in shims}
    return {path for path in named if path.exists()}


def is_shim(process: psutil.Process) -> bool:
    return command_line(process.pid)[4:5] == ["shim"]


def test_a_poprun_below_another_one_leaves_nothing_when_it_is_killed(
    poprun: Poprun,
) -> None:
    process = nested(poprun, grace="0.3")
    made = directories_of(psutil.Process(process.pid))

    process.send_signal(signal.SIGTERM)

    process.communicate(timeout=200)
    assert len(made) == 2
    # The job of a test beside this one may be removing them.
    wait_for(lambda: not any(map(Path.exists, made)), "no directory of theirs")


def test_a_poprun_below_another_one_leaves_no_process_behind(poprun: Poprun) -> None:
    ran = poprun(*job("local", 1), POPRUN, *job("local", 2), "true")

    assert (ran.code, ran.stdout, ran.stderr) == (0, "", "")


# --- What outlives its parent.


def test_a_daemon_that_holds_stdout_open_is_ended_and_noted(
    poprun: Poprun, every_mpirun: str
) -> None:
    ran = poprun(*job(every_mpirun, 1), "sh", "-c", "(setsid sleep 600 &); echo done")

    assert (ran.code, ran.stdout, ran.stderr) == (
        0,
        "done\n",
        "poprun: Instance 0 left 1 process running, which poprun ended.\n",
    )


BOMB = """
import os, signal, time
from pathlib import Path
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(200):
    if os.fork() == 0:
        time.sleep(600)
        os._exit(0)
Path("up." + os.environ["RANK"]).touch()
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_two_hundred_children_that_ignore_sigterm_are_ended(
    poprun: Poprun, every_mpirun: str, number: signal.Signals
) -> None:
    words = ["python", poprun.script("bomb.py", BOMB)]
    process = poprun.start(*job(every_mpirun, 2, "--grace", "0.2"), *words)
    wait_for(lambda: len(list(poprun.directory.glob("up.*"))) == 2, "the ranks")

    tree = psutil.Process(process.pid).children(recursive=True)
    bombs = [p for p in tree if command_line(p.pid) == words]

    process.send_signal(number)
    _, err = process.communicate(timeout=200)

    assert len(bombs) == 402
    wait_for(lambda: not any(map(is_alive, bombs)), "the end of all children")
    if number == signal.SIGTERM:
        assert (process.returncode, err.decode()) == (143, acknowledged("SIGTERM"))


# --- Time.


def test_a_job_that_takes_too_long_is_stopped(
    poprun: Poprun, every_mpirun: str
) -> None:
    ran = poprun(
        *job(every_mpirun, 2, "--timeout", "1", "--grace", "0.3"),
        *("sh", "-c", "trap '' TERM; sleep 600"),
    )

    assert (ran.code, ran.stdout, ran.stderr) == (
        124,
        "",
        "poprun: error: The job took longer than the 1 s of --timeout and "
        "was stopped.\n",
    )


def test_a_job_that_ends_in_time_is_not(poprun: Poprun, every_mpirun: str) -> None:
    ran = poprun(
        *job(every_mpirun, 2, "--timeout", "600", "--grace", "0.3"), "sleep", "0.5"
    )

    assert (ran.code, ran.stdout, ran.stderr) == (0, "", "")
