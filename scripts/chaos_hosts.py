"""Kill, stop and cut off random parts of random jobs on several hosts of a test bed.

    sudo python scripts/chaos_hosts.py --rounds 300

Each round starts a job on two to four hosts, now and then two jobs at once, and does
one to three things to them, at random times from their start on: it kills one or two of
their processes on any host (poprun, guard, mpirun, its daemons, ssh, agents, shims,
instances), or stops one until later or for a minute, sends a poprun a signal, cuts a
host off, for a while or for good, delays and loses what it sends, or powers a host off.
What still runs after that, it ends. Each poprun must end in time and with an exit code
and words that fit, and 15 seconds later no process and no file of the jobs may be left
on any host, also on one that is cut off. Where several supervisors of a host were
killed, files may stay until the next job of the user there, and mpirun's daemon as long
as the host is cut off.

A round that fails is reported in full; --seed and --first repeat it. --story reports
every round.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from chaos_round import ChaosRound, make_parser, run_rounds

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from beds.bed import Bed  # noqa: E402
from beds.host import Host  # noqa: E402
from conftest import MPIRUNS, mpirun_of  # noqa: E402

# From the last harm to poprun's end, where nothing has to be waited for but silence.
HANGS_S = 40.0
# As long as --start-timeout, within which mpirun has to start all instances.
START_S = 60.0
GONE_S = 15.0
# What is left by a connection that its host's sshd does not know to be gone.
OF_SSHD = re.compile("sshd")
OF_DAEMON = re.compile("/prted|/orted|hydra_pmi_proxy")
# In a traceback; the frames of poprun's sitecustomize are those of an instance.
CRASH = re.compile(r"SIGSEGV|SIGABRT|SIGBUS|Segmentation fault|Assertion failed")
OWN_FRAME = re.compile(f'"{re.escape(str(ROOT))}/poprun/(?!interpreter/)')
STUBBORN = "trap '' TERM INT; sleep $0 & (env -i setsid sleep $0 &); sleep $0"
# Members make collectives of several sizes until one is lost. Those that catch the
# error go on working without the group, and succeed.
COLLECTIVES = """
import sys, time
import numpy as np
import popdist
from popdist.errors import PopdistError

sizes = [1, 5000, 400_000, 3_000_000]
try:
    group = popdist.instance_group()
    while True:
        for size in sizes:
            x = np.ones(size, np.float32)
            group.all_reduce(x, out=x)
            assert x[0] == x[-1] == group.size, x
except PopdistError as error:
    if sys.argv[1] == "raise":
        raise
    until = time.monotonic() + 1
    while time.monotonic() < until:
        assert sum(np.ones(1000)) == 1000
    print(f"caught {type(error).__name__}", file=sys.stderr)
"""
# What instances run, with a word of the job's own at the end, and how many seconds of
# a job's life are of interest.
JOBS = {
    "true": (["sh", "-c", "exit 0"], 1.5),
    "sleep": (["sh", "-c", "exec sleep $0"], 2.0),
    "stubborn": (["sh", "-c", STUBBORN], 2.0),
    "failing": (["sh", "-c", "sleep 0.3; exit $RANK"], 1.5),
    "printing": (["sh", "-c", "yes $0"], 2.0),
    "ranks": (
        [
            *("python3", "-c"),
            "import time; from mpi4py import MPI; w = MPI.COMM_WORLD\n"
            "while True: w.Barrier(); time.sleep(0.01)",
        ],
        4.0,
    ),
    "collectives": (["python3", "-c", COLLECTIVES, "raise"], 4.0),
    "catching": (["python3", "-c", COLLECTIVES, "catch"], 4.0),
}
ENDING = ("true", "failing")
HOSTS = ("h0,h1", "h1,h2", "h0,h1,h2", "h0,h1,h2,h3")
# In which share of the rounds there are two jobs.
TWO_AT_ONCE = 0.25
# In which share of the rounds nothing is done before instances run.
HARM_WHEN_RUNNING = 0.7
WITH_MPI = ("ranks", "collectives", "catching")
HARMS = {
    "kill": 0.33,
    "kill-two": 0.12,
    "stop": 0.15,
    "signal": 0.1,
    "cut": 0.12,
    "blink": 0.1,
    "power-off": 0.08,
    "slow": 0.1,
    "stop-long": 0.02,
    "instance": 0.1,
}
# For how long "stop-long" stops a process.
LONG_STOP_S = 60.0
SUPERVISORS = re.compile("bin/poprun |entry.py guard|host/agent_entry.py|entry.py shim")
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
# Exit codes that say that poprun, or the job, was ended or has failed.
MACHINERY, TIMED_OUT, OUTPUT_CLOSED = 125, 124, 141


class Job:
    """One poprun, what its instances do, and what is known of how it may end."""

    def __init__(
        self, kind: str, word: str, process: "subprocess.Popen[bytes]"
    ) -> None:
        self.kind = kind
        self.word = word
        self.process = process
        # Whether poprun was killed, and whether it has got another signal.
        self.was_killed = self.was_signalled = False

    @property
    def ends(self) -> bool:
        return self.kind in ENDING


class HostsRound(ChaosRound):
    """One job on several hosts, or two at once, and what is done to them."""

    bed: Bed | None = None
    # Of so many rounds the next job has removed the files.
    num_left_to_next_job = 0

    def __init__(self, number: int, options: argparse.Namespace) -> None:
        super().__init__(number, options.seed)
        self.options = options
        self.hosts = self.dice.choice(HOSTS).split(",")
        if HostsRound.bed is None:
            HostsRound.bed = Bed(hosts=4)
        self.stopped: list[tuple[Host, int]] = []
        self.cut_off: list[Host] = []
        self.powered_off: list[Host] = []
        self.slow: list[Host] = []
        # Whether the bed cannot be used for another round.
        self.is_broken = False
        # How many supervisors were killed on each host: where several were, files may
        # stay until the next job, as documented.
        self.supervisors_killed: Counter[str] = Counter()
        self.jobs = [self._start_job()]
        if self.dice.random() < TWO_AT_ONCE:
            self.jobs.append(self._start_job())
        self.life = max(JOBS[job.kind][1] for job in self.jobs)

    def _start_job(self) -> Job:
        without_mpi = () if self.options.job in WITH_MPI else ("local",)
        mpi = self.options.mpi or self.dice.choice([*MPIRUNS, *without_mpi])
        kinds = [kind for kind in JOBS if mpi != "local" or kind not in WITH_MPI]
        kind = self.options.job or self.dice.choice(kinds)
        size = len(self.hosts) * self.dice.choice((1, 2, 4))
        path = "local" if mpi == "local" else mpirun_of(mpi)
        words = ["poprun", "--mpirun", path, "--offline-mode=yes", "--grace", "0.5"]
        words += ["--host", ",".join(self.hosts), "-n", str(size)]
        words += ["--keep-going"] if kind == "catching" else []
        self.story.append(f"{size} x {kind}, {mpi}, on {','.join(self.hosts)}")
        word = f"{self.word}{self.dice.randrange(10)}"
        log_out = os.open(os.devnull, os.O_WRONLY)
        process = self.own_bed.front.start(
            *(*words, *JOBS[kind][0], word), stdout=log_out, stderr=self.log
        )
        os.close(log_out)
        return Job(kind, word, process)

    @property
    def own_bed(self) -> Bed:
        assert HostsRound.bed is not None
        return HostsRound.bed

    def run(self) -> list[str]:
        """Harm the jobs, and return what is wrong after that."""
        wrong = []
        if not all(job.ends for job in self.jobs) or self.dice.random() < 0.8:
            if self.dice.random() < HARM_WHEN_RUNNING:
                self._wait_for_instances()
            for _ in range(self.dice.choice((1, 1, 2, 3))):
                time.sleep(
                    self.dice.choice((0.0, *[self.dice.uniform(0, self.life)] * 3))
                )
                self._harm()
        began = time.monotonic()
        try:
            self._wait_for_jobs()
        except subprocess.TimeoutExpired:
            wrong.append(f"a poprun was still there after {HANGS_S} s")
            wrong += self.own_bed.leftovers()
            self.is_broken = True
        codes = " and ".join(str(job.process.returncode) for job in self.jobs)
        self.story.append(
            f"poprun ended with {codes} after {time.monotonic() - began:.1f} s"
        )
        if not wrong:
            wrong = [text for job in self.jobs for text in self._wrong_words(job)]
        wrong += self._leftovers()
        if wrong:
            self._describe_threads()
        self._mend_all()
        if wrong or self.is_broken:
            self.own_bed.close()
            HostsRound.bed = None
        if self.options.story and not wrong:
            print(self.report(), "\n", flush=True)
        return wrong

    def _wait_for_instances(self) -> None:
        """Wait until instances of each job run, or its poprun has ended."""
        limit = time.monotonic() + START_S
        waiting = self.jobs
        while waiting and time.monotonic() < limit:
            time.sleep(0.05)
            running = "\n".join(
                process
                for host in self.own_bed.hosts
                for process in host.processes()
                if "bin/poprun " not in process
            )
            waiting = [
                job
                for job in waiting
                if job.process.poll() is None and job.word not in running
            ]

    # --- What is done to a job.

    def _harm(self) -> None:
        weights = list(HARMS.values())
        harm = self.options.harm or self.dice.choices(list(HARMS), weights)[0]
        hosts = [h for h in self.own_bed.hosts if h.name in self.hosts]
        others = [h for h in hosts if h not in (self.own_bed.front, *self.powered_off)]
        if not others:
            return
        other = self.dice.choice(others)
        match harm:
            case "kill-two":
                self._send(signal.SIGKILL, "bin/poprun |entry.py guard")
                time.sleep(self.dice.choice((0, self.dice.uniform(0, 0.08))))
                self._send(
                    signal.SIGKILL, "host/agent_entry.py|entry.py guard|entry.py shim"
                )
            case "kill" | "stop":
                number = signal.SIGKILL if harm == "kill" else signal.SIGSTOP
                self._send(number)
            case "signal":
                self._signal_poprun(self.dice.choice(self.jobs))
            case "cut":
                self.story.append(f"{other.name} is cut off")
                other.link.cut()
                self.cut_off.append(other)
            case "blink":
                seconds = self.dice.uniform(0.1, 3)
                self.story.append(f"{other.name} is cut off for {seconds:.1f} s")
                other.link.cut()
                time.sleep(seconds)
                other.link.mend()
            case "power-off":
                self.story.append(f"{other.name} is powered off")
                other.power_off()
                self.powered_off.append(other)
                self.is_broken = True
            case "slow" if other not in self.cut_off:
                delay, loss = self.dice.choice(((2, 0.001), (20, 0.01), (100, 0.05)))
                self.story.append(f"{other.name}: {delay} ms of delay, {loss:.1%} lost")
                other.link.shape(delay_ms=delay, loss=loss)
                self.slow.append(other)
            case "stop-long":
                self._send(signal.SIGSTOP)
                time.sleep(LONG_STOP_S)
                self._continue_all()
            case "instance":
                words = "|".join(job.word for job in self.jobs)
                self._send(signal.SIGKILL, f"^(?!.*bin/poprun ).*({words})")

    def _send(self, number: int, pattern: str = "") -> None:
        """Send a signal to a process of the job whose words match a pattern."""
        found = re.compile(pattern, re.DOTALL)
        parts = [part for part in self._parts() if found.search(part[2])]
        if not parts:
            self.story.append("nothing was there to harm")
            return
        host, pid, words = self.dice.choice(parts)
        if number == signal.SIGKILL and SUPERVISORS.search(words):
            self.supervisors_killed[host.name] += 1
        for job in self.jobs:
            if "bin/poprun " in words and job.word in words:
                job.was_killed |= number == signal.SIGKILL
        name = signal.Signals(number).name
        self.story.append(f"{name} to {words[:40]}...{words[-60:]} on {host.name}")
        host.run("kill", f"-{number}", str(pid))
        if number == signal.SIGSTOP:
            self.stopped.append((host, pid))

    def _parts(self) -> Iterator[tuple[Host, int, str]]:
        """Yield the processes of the job, each kind about as often as the others."""
        kinds: dict[str, list[tuple[Host, int, str]]] = {}
        for host in self.own_bed.hosts:
            for process in host.processes():
                pid, _, words = process.partition(":")
                # It becomes poprun, or is the bed's or another's.
                if not words or re.search("nsenter | env --chdir|sshd: [^r]", words):
                    continue
                kind = " ".join(words.split()[:5])
                kinds.setdefault(f"{host.name} {kind}", []).append(
                    (host, int(pid), words)
                )
        for same in kinds.values():
            yield self.dice.choice(same)

    def _signal_poprun(self, job: Job) -> None:
        number = self.dice.choice(SIGNALS)
        self.story.append(f"{number.name} to poprun")
        job.was_signalled = True
        if job.process.poll() is None:
            job.process.send_signal(number)

    # --- What must be so after that.

    def _wait_for_jobs(self) -> None:
        """Wait until each poprun has ended; end jobs that the harm has not ended."""
        limit = time.monotonic() + self.dice.uniform(0.5, 3)
        if self.cut_off or self.powered_off:
            limit += 12
        while any(job.process.poll() is None for job in self.jobs):
            if time.monotonic() > limit:
                break
            time.sleep(0.02)
        self._continue_all()
        for job in self.jobs:
            if job.process.poll() is None and not job.ends:
                self._end(job)
        for job in self.jobs:
            job.process.wait(START_S + HANGS_S if job.ends else HANGS_S)

    def _end(self, job: Job) -> None:
        number = self.dice.choice((signal.SIGTERM, signal.SIGINT, signal.SIGKILL))
        self.story.append(f"{number.name} to poprun, which still runs")
        job.was_signalled = True
        job.was_killed |= number == signal.SIGKILL
        job.process.send_signal(number)

    def _continue_all(self) -> None:
        for host, pid in self.stopped:
            if host not in self.powered_off:
                host.run("kill", "-CONT", str(pid))
        self.stopped.clear()

    def _wrong_words(self, job: Job) -> list[str]:
        """Return what is wrong with the exit code of a poprun and with its words."""
        code = job.process.returncode
        text = os.pread(self.log, 1 << 20, 0).decode(errors="replace")
        wrong = []
        if OWN_FRAME.search(text):
            wrong.append("a traceback")
        if CRASH.search(text):
            wrong.append("a crash")
        if code < 0 and not (job.was_killed or job.was_signalled):
            wrong.append(f"poprun was ended by signal {-code}")
        # A signal that came while Python started is Python's to tell.
        is_told = "poprun: error: " in text or "init_import_site" in text
        if code > 0 and not is_told and code != OUTPUT_CLOSED:
            wrong.append(f"exit code {code} without a word")
        if code == 0 and job.kind != "true":
            wrong.append("exit code 0 of a job that cannot succeed")
        return wrong

    def _leftovers(self) -> list[str]:
        left = self._wait_for_end()
        if left and self._continue_early():
            left = self._wait_for_end()
        if left and max(self.supervisors_killed.values(), default=0) > 1:
            reachable = self._reachable()
            if not any(host.processes() for host in reachable):
                self._run_next_job(reachable)
                # Its own agents end when poprun has closed the connections to them.
                left = self._wait_for_end()
                HostsRound.num_left_to_next_job += not left
        return left

    def _describe_threads(self) -> None:
        """Report what the threads on all hosts wait for, those of zombies too."""
        words = ("ps", "-eLo", "pid,ppid,lwp,stat,wchan:20,etimes,args")
        for host in self.own_bed.hosts:
            if host not in self.powered_off:
                lines = host.run(*words).stdout.splitlines()
                self.story += [f"{host.name}: {line[:150]}" for line in lines]

    def _reachable(self) -> list[Host]:
        away = (*self.powered_off, *self.cut_off)
        return [host for host in self.own_bed.hosts if host not in away]

    def _run_next_job(self, reachable: Sequence[Host]) -> None:
        """Run a job that does nothing, and removes the files of killed jobs."""
        words = ["poprun", "--mpirun", "local", "--offline-mode=yes"]
        hosts = [host.name for host in reachable]
        self.own_bed.front.run(
            *words, "-n", str(len(hosts)), "--host", ",".join(hosts), "true"
        )

    def _continue_early(self) -> bool:
        """Continue helpers that were stopped before they could prevent that.

        They ask the kernel to continue them as soon as they run.
        """
        early = False
        for host, pid in self.stopped:
            try:
                status = host.path(f"/proc/{pid}/status").read_text()
            except OSError:
                continue
            caught = next(w for w in status.splitlines() if w.startswith("SigCgt"))
            if not int(caught.split()[1], 16) >> (signal.SIGCONT - 1) & 1:
                self.story.append(f"SIGCONT to {pid} on {host.name}, stopped early")
                host.run("kill", "-CONT", str(pid))
                early = True
        return early

    def _wait_for_end(self) -> list[str]:
        limit = time.monotonic() + GONE_S
        while left := self._find_leftovers():
            if time.monotonic() >= limit:
                return left
            time.sleep(0.1)
        return []

    def _find_leftovers(self) -> list[str]:
        left = self.own_bed.leftovers()
        if self.cut_off:
            # It has not heard that its connection is gone.
            left = [process for process in left if not OF_SSHD.search(process)]
        return [leftover for leftover in left if not self._may_stay(leftover)]

    def _may_stay(self, leftover: str) -> bool:
        """Return whether it is a file or a daemon that nothing is there to end."""
        host, _, what = leftover.partition(": ")
        if self.supervisors_killed[host] < 2:
            return False
        is_cut_off = host in [h.name for h in self.cut_off]
        return is_cut_off and (what.startswith("/") or bool(OF_DAEMON.search(what)))

    def _mend_all(self) -> None:
        for host in self.slow:
            if host not in self.powered_off:
                host.link.shape()
        for host in self.cut_off:
            if not self.is_broken:
                host.link.mend()
        limit = time.monotonic() + GONE_S
        while self.own_bed.leftovers() and time.monotonic() < limit:
            time.sleep(0.1)
        if not self.is_broken:
            self.own_bed.clean()


def main() -> int:
    parser = make_parser(str(__doc__), rounds=100)
    parser.add_argument("--harm", choices=HARMS)
    parser.add_argument("--job", choices=JOBS)
    parser.add_argument("--mpi", choices=[*MPIRUNS, "local"])
    parser.add_argument("--story", action="store_true", help="report every round")
    options = parser.parse_args()
    try:
        failed = run_rounds(options, lambda number: HostsRound(number, options))
    finally:
        if HostsRound.bed is not None:
            HostsRound.bed.close()
    print(
        f"{options.rounds} rounds, {failed} of them failed; of "
        f"{HostsRound.num_left_to_next_job} more the next job removed the files, as "
        "documented."
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
