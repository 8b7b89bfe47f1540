"""The vocabulary of deaths: what is hard to end, who is killed, what is left.

Everything that a job here starts has a word of its own on its command line. It finds
the processes whose environment has been emptied, which nothing else would.
"""

import os
import random
import signal
from pathlib import Path

import psutil
from conftest import Poprun, wait_for

# What instances of a crowd do instead of ending, each in its own way. Each makes a
# file when it is ready, and `$1` is the word.
CROWD = """
case $RANK in
    0) # an ordinary process
        touch ready.0
        exec sleep $1 ;;
    1) # one that obeys nothing, with children that do not either
        trap '' TERM INT HUP QUIT
        sleep $1 &
        touch ready.1
        while :; do wait; done ;;
    2) # one with a grandchild in a session and with an environment of its own
        (env -i setsid sleep $1 &)
        touch ready.2
        exec sleep $1 ;;
    3) # one with a child in the background
        sleep $1 &
        touch ready.3
        sleep $1 ;;
esac
"""
CROWD_SIZE = 4
CROWD_SLEEPS = 6

# Ranks of a real MPI job: one never comes to the barrier, the others wait for it.
MPI_RANKS = """
import sys, time
from pathlib import Path
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()
rank = MPI.COMM_WORLD.Get_rank()
Path(f"ready.{rank}").touch()
if rank == 0:
    time.sleep(float(sys.argv[1]))
MPI.COMM_WORLD.Barrier()
"""


class Doomed:
    """A job that does not end by itself, and how it is brought to an end."""

    def __init__(self, poprun: Poprun, mpirun: str, program: str, *options: str):
        self.word = f"98765.{random.randrange(10**12)}"
        self._program = program
        size = CROWD_SIZE if program == "crowd" else 2
        words = self._words(poprun.directory)
        self.process = poprun.start(
            *("--mpirun", mpirun),
            *("--num-instances", str(size), "--num-replicas", str(size)),
            *options,
            *words,
        )
        wait_for(lambda: self._is_ready(poprun.directory, size), "the job to start")

    def _words(self, directory: Path) -> list[str]:
        if self._program == "crowd":
            (directory / "crowd.sh").write_text(CROWD)
            return ["sh", "crowd.sh", self.word]
        (directory / "ranks.py").write_text(MPI_RANKS)
        return ["python", "ranks.py", self.word]

    def _is_ready(self, directory: Path, size: int) -> bool:
        assert self.process.poll() is None, self.process.communicate()
        sleeps = [p for p in self.programs() if command_line(p.pid)[:1] == ["sleep"]]
        expected = CROWD_SLEEPS if self._program == "crowd" else 0
        return len(list(directory.glob("ready.*"))) == size and len(sleeps) == expected

    def kill(self, victim: str, number: int = signal.SIGKILL) -> None:
        """Send a signal to a part of the job, SIGKILL if not said otherwise."""
        self.find(victim).send_signal(number)

    def find(self, victim: str) -> psutil.Process:
        """Return the process of poprun, guard, mpirun, proxy or "shim N"."""
        launcher = psutil.Process(self.process.pid)
        if victim == "poprun":
            return launcher
        below = launcher.children(recursive=True)
        if victim == "mpirun":
            guard = self._with_words(below, "guard")
            return guard.children()[0]
        if victim == "proxy":
            return next(p for p in below if p.name() == "hydra_pmi_proxy")
        return self._with_words(below, *victim.split())

    def _with_words(
        self, below: list[psutil.Process], role: str, rank: str = ""
    ) -> psutil.Process:
        # python -I -S entry.py ROLE ... RANK
        words = {p: command_line(p.pid) for p in below}
        return next(
            p for p, w in words.items() if w[4:5] == [role] and w[-1].endswith(rank)
        )

    def programs(self) -> list[psutil.Process]:
        """Return the instances, and what they have started."""
        return [p for p in psutil.process_iter() if self._is_program(p.pid)]

    def _is_program(self, pid: int) -> bool:
        words = command_line(pid)
        return self.word in words and "poprun" not in words[1]

    def kill_guard(self) -> None:
        """Kill the guard, and wait for the one that takes its place."""
        first = self.find("guard").pid
        self.kill("guard")

        def another() -> bool:
            try:
                return self.find("guard").pid != first
            except StopIteration:
                return False

        wait_for(another, "another guard")

    def end(self) -> tuple[int, str]:
        """Wait for the end of poprun; returns its exit code and what it said."""
        _, err = self.process.communicate(timeout=200)
        return self.process.returncode, err.decode()

    def assert_nothing_is_left(self) -> None:
        wait_for(lambda: not self.programs(), "the last process to end")


def command_line(pid: int) -> list[str]:
    """Return the words of a process, none if it is dead."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
    except OSError:
        return []
    return [os.fsdecode(word) for word in words]


def is_alive(process: psutil.Process) -> bool:
    """Return whether a process runs; one that only waits to be reaped does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
