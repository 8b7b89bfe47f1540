"""Kill random parts of random jobs at random moments, and see that nothing is left.

    python scripts/chaos.py --rounds 300 --mpirun /usr/bin/mpirun.openmpi

Each round starts a job and harms it: it kills one of the job's processes or poprun's
helpers with SIGKILL, or poprun and its guard within 80 ms, or the guard and, as soon
as there is another, poprun, or stops the guard with SIGSTOP, also after poprun was
killed. What still runs after that, it ends. Then poprun must end soon, and three
seconds later (up to twelve on a busy machine) no process of the job and none of the
files that poprun and MPI make may be left. Three exceptions are documented
(docs/supervision.md). Where poprun was killed and no guard lived after that, files may
stay until the next job of the user ends: the script runs one, and what that does not
remove is a failure. A guard that was stopped
before it could ask the kernel to continue it stays stopped: the script continues it.
Where a guard or a rank was killed, a file of MPICH's may stay: the script counts it.

A round that fails is reported in full; --seed and --first repeat it. --harm and --job
choose one harm and one kind of job. With --private (for root) /dev/shm and /tmp are
this script's own, where other jobs run on the machine.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
from chaos_round import BIN, ChaosRound, command_line, make_parser, run_rounds

from poprun.helpers.load import timeout_factor
from poprun.helpers.processes import catches

HANGS_S = 20.0
GONE_S = 3.0

PLACES = ("/dev/shm", "/tmp")
OF_MPICH = ("/dev/shm/mpich_", "/tmp/hydra_hwloc_")
PREFIXES = ("poprun-", "mpich_", "hydra_hwloc_", "ompi", "prte", "sm_segment", "vader")

PRIVATE = (
    """mount -t tmpfs none /dev/shm && mount -t tmpfs none /tmp && exec "$0" "$@" """
)
STUBBORN = "trap '' TERM INT; sleep $0 & (env -i setsid sleep $0 &); sleep $0"
BARRIERS = """
import sys, time
from mpi4py import MPI
world = MPI.COMM_WORLD
for _ in range(int(sys.argv[2])):
    world.Barrier()
    time.sleep(0.01)
"""
# What instances run, with a word of the job's own for WORD or at the end, and how many
# seconds of a job's life are of interest.
JOBS = {
    "true": (["sh", "-c", "exit 0"], 0.4),
    "sleep": (["sh", "-c", "exec sleep $0"], 0.5),
    "stubborn": (["sh", "-c", STUBBORN], 0.5),
    "failing": (["sh", "-c", "sleep 0.1; exit $RANK"], 0.5),
    "short ranks": ([sys.executable, "-c", BARRIERS, "WORD", "10"], 2.0),
    "long ranks": ([sys.executable, "-c", BARRIERS, "WORD", "100000"], 2.0),
}

# How many instances they have, if not 1 to 4.
SIZES = {"true": (1, 2, 3, 64), "stubborn": (1, 2, 4, 12)}
# These end by themselves, and are left in peace now and then.
ENDING = ("true", "failing", "short ranks")
# How often which harm is done.
HARMS = {"one": 0.5, "both": 0.2, "next-guard": 0.2, "stop-guard": 0.1}


class Round(ChaosRound):
    """One job, and what is done to it."""

    # Of so many rounds the next job has removed the files.
    num_left_to_next_job = 0
    # In so many a file of MPICH's has stayed, and nothing else.
    num_with_mpich_file = 0

    def __init__(self, number: int, options: argparse.Namespace) -> None:
        super().__init__(number, options.seed)
        # poprun's own launcher has no MPI.
        has_mpi = options.mpirun != "local"
        kinds = [kind for kind in JOBS if has_mpi or "ranks" not in kind]
        harm = self.dice.choices(list(HARMS), list(HARMS.values()))[0]
        self.kind = options.job or self.dice.choice(kinds)
        self.harm = options.harm or harm
        self.before = files()
        self.killed: list[psutil.Process] = []
        # Whether poprun was killed and no guard is left, so that the next job may have
        # to remove the files.
        self.is_unguarded = False
        self.has_killed_guard_or_rank = False
        self.stopped: psutil.Process | None = None
        self.process = self._start(options.mpirun)

    def _start(self, mpirun: str) -> psutil.Popen:
        size = str(self.dice.choice(SIZES.get(self.kind, (1, 2, 3, 4))))
        words, _ = JOBS[self.kind]
        program = [self.word if word == "WORD" else word for word in words]
        if self.word not in program:
            program.append(self.word)
        self.story.append(f"{size} x {self.kind}")
        options = ["--mpirun", mpirun, "--grace", "0.3"]
        options += ["--num-instances", size, "--num-replicas", size]
        return self.start(options, program, os.environ)

    def run(self) -> list[str]:
        """Harm the job, and return what is left of it, or that poprun hangs."""
        if self.kind not in ENDING or self.dice.random() < 0.8:
            self._harm()
        try:
            self.process.wait(HANGS_S)
        except psutil.TimeoutExpired:
            self.process.kill()
            return [f"poprun was still there after {HANGS_S} s"]
        return self._leftovers()

    def _harm(self) -> None:
        if self.dice.random() < 0.3:
            # While mpirun starts the others.
            self._wait_for_first_instance()
        else:
            time.sleep(self.dice.uniform(0, JOBS[self.kind][1]))
        match self.harm:
            case "both":
                self._kill_both()
            case "next-guard":
                self._kill_with_next_guard()
            case "stop-guard":
                self._stop_guard()
            case _:
                self.kill(self.dice.choice(self._parts()))
        # At once would kill all supervisors that could remove anything.
        time.sleep(self.dice.uniform(0.1, 0.5))
        self.end(self.process)

    def _wait_for_first_instance(self) -> None:
        limit = time.monotonic() + JOBS[self.kind][1]
        while time.monotonic() < limit:
            if any(self.word in command_line(p) for p in self._below()):
                return

    def kill(self, victim: psutil.Process) -> bool:
        self.killed.append(victim)
        words = command_line(victim)
        is_rank = self.word in words and victim != self.process
        self.has_killed_guard_or_rank |= is_rank or words[4:5] == ["guard"]
        has_guard = self._has_guard()
        was_there = super().kill(victim)
        if was_there and self.process in self.killed and not has_guard:
            self.is_unguarded = True
        return was_there

    def _has_guard(self) -> bool:
        """Return whether poprun has a guard that was not killed, or just starts one."""
        own = command_line(self.process)
        others = [command_line(p) for p in self._children() if p not in self.killed]
        return any(argv[4:5] == ["guard"] or argv == own for argv in others)

    def _children(self) -> list[psutil.Process]:
        try:
            return self.process.children()
        except psutil.NoSuchProcess:
            return []

    def _guard(self) -> psutil.Process | None:
        return next(iter(self._children()), None)

    def _kill_both(self) -> None:
        both = [p for p in (self.process, self._guard()) if p]
        self.dice.shuffle(both)
        for victim in both:
            self.kill(victim)
            time.sleep(self.dice.choice((0, self.dice.uniform(0, 0.08))))

    def _kill_with_next_guard(self) -> None:
        """Kill the guard, and poprun when another guard is just there."""
        guard = self._guard()
        if guard is None:
            return
        # What the guard has started becomes poprun's when it is killed.
        others = {str(p.pid) for p in self._parts()}
        self.kill(guard)
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        limit = time.monotonic() + 1
        while time.monotonic() < limit:
            with suppress(OSError):
                if set(children.read_text().split()) - others:
                    break
        time.sleep(self.dice.choice((0, self.dice.uniform(0, 0.04))))
        self.kill(self.process)

    def _stop_guard(self) -> None:
        guard = self._guard()
        if self.dice.random() < 0.5:
            self.kill(self.process)
            time.sleep(self.dice.uniform(0, 0.08))
        try:
            if guard:
                self.story.append("SIGSTOP to the guard")
                guard.suspend()
                self.stopped = guard
        except psutil.NoSuchProcess:
            self.story.append("which has ended already")

    def _parts(self) -> list[psutil.Process]:
        """Return poprun as often as all the rest: it is the one that users kill."""
        below = self._below()
        return [self.process] * max(1, len(below) // 2) + below

    def _below(self) -> list[psutil.Process]:
        try:
            return self.process.children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def _leftovers(self) -> list[str]:
        leftovers = self._wait_for_end()
        if leftovers and self.stopped and not catches(self.stopped.pid, signal.SIGCONT):
            with suppress(psutil.NoSuchProcess):
                self.stopped.resume()
            leftovers = self._wait_for_end()
        if leftovers and self.is_unguarded and not self.find_processes():
            run_next_job()
            leftovers = self._find_leftovers()
            Round.num_left_to_next_job += not leftovers
        paths = [what.removeprefix("file ") for what in leftovers]
        is_of_mpich = all(path.startswith(OF_MPICH) for path in paths)
        if paths and is_of_mpich and self.has_killed_guard_or_rank:
            Round.num_with_mpich_file += 1
            return []
        return leftovers

    def _wait_for_end(self) -> list[str]:
        limit = time.monotonic() + GONE_S * timeout_factor()
        while (leftovers := self._find_leftovers()) and time.monotonic() < limit:
            time.sleep(0.02)
        return leftovers

    def _find_leftovers(self) -> list[str]:
        return [*self.find_processes(), *(f"file {p}" for p in files() - self.before)]


def run_next_job() -> None:
    """Run a job that does nothing, and removes the files of killed jobs at its end."""
    subprocess.run(
        [
            *(str(BIN / "poprun"), "--mpirun", "local", "--offline-mode", "yes"),
            *("--num-instances", "1", "--num-replicas", "1", "true"),
        ],
        stdin=subprocess.DEVNULL,
        check=True,
        timeout=HANGS_S,
    )


def files() -> set[str]:
    """Return what lies where jobs leave things, but for what living jobs use."""
    return {
        os.path.join(place, name)
        for place in PLACES
        for name in os.listdir(place)
        if name.startswith(PREFIXES) and not in_use(os.path.join(place, name))
    }


def in_use(path: str) -> bool:
    """Whether a living process has a file open, or a job's name in its environment."""
    identity = path.rpartition("-")[2].encode()
    for pid in psutil.pids():
        proc = Path(f"/proc/{pid}")
        try:
            if "poprun-" in path and identity in (proc / "environ").read_bytes():
                return True
            if any(os.readlink(fd) == path for fd in (proc / "fd").iterdir()):
                return True
        except OSError:
            continue
    return False


def main() -> int:
    parser = make_parser(str(__doc__), rounds=100)
    parser.add_argument("--harm", choices=HARMS)
    parser.add_argument("--job", choices=JOBS)
    parser.add_argument("--mpirun", default=str(BIN / "mpirun"))
    parser.add_argument(
        "--private", action="store_true", help="Use a new /dev/shm and /tmp."
    )
    options = parser.parse_args()
    if options.private:
        words = [word for word in sys.argv if word != "--private"]
        shell = ["unshare", "-m", "sh", "-c", PRIVATE, sys.executable]
        os.execvp(shell[0], [*shell, *words])
    failed = run_rounds(options, lambda number: Round(number, options))
    print(
        f"{options.rounds} rounds, {failed} of them left something; of "
        f"{Round.num_left_to_next_job} more the next job removed the files, and in "
        f"{Round.num_with_mpich_file} a file of MPICH's has stayed, as documented."
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
