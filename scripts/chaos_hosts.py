"""Kill, stop and cut off random parts of random jobs on several hosts of a test bed.

    sudo python scripts/chaos_hosts.py --rounds 300

Each round starts a job on two or three hosts and does one to three things to it, at
random times from its start on: it kills one or two of its processes on any host
(poprun, guard, mpirun, its daemons, ssh, agents, shims, instances), or stops one until
later, sends poprun a signal, cuts a host off, for a while or for good, or powers a host
off. What still runs after that, it ends. poprun must end in time and with an exit code
and words that fit, and 15 seconds later no process and no file of the job may be left
on any host, also on one that is cut off. Where several supervisors of a host were
killed, files may stay until the next job of the user there, and mpirun's daemon as long
as the host is cut off.

A round that fails is reported in full; --seed and --first repeat it.
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
OWN_FRAME = re.compile(f'"{re.escape(str(ROOT))}/poprun/(?!interpreter/)')
STUBBORN = "trap '' TERM INT; sleep $0 & (env -i setsid sleep $0 &); sleep $0"
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
}
ENDING = ("true", "failing")
HARMS = {
    "kill": 0.33,
    "kill-two": 0.12,
    "stop": 0.15,
    "signal": 0.1,
    "cut": 0.12,
    "blink": 0.1,
    "power-off": 0.08,
}
SUPERVISORS = re.compile("bin/poprun |entry.py guard|agent/entry.py|entry.py shim")
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
# Exit codes that say that poprun, or the job, was ended or has failed.
MACHINERY, TIMED_OUT, OUTPUT_CLOSED = 125, 124, 141


class HostsRound(ChaosRound):
    """One job on several hosts, and what is done to it."""

    bed: Bed | None = None
    # Of so many rounds the next job has removed the files.
    num_left_to_next_job = 0

    def __init__(self, number: int, options: argparse.Namespace) -> None:
        super().__init__(number, options.seed)
        mpi = options.mpi or self.dice.choice([*MPIRUNS, "local"])
        kinds = [kind for kind in JOBS if mpi != "local" or kind != "ranks"]
        self.kind = options.job or self.dice.choice(kinds)
        self.harm = options.harm
        self.hosts = self.dice.choice(("h0,h1", "h1,h2", "h0,h1,h2")).split(",")
        if HostsRound.bed is None:
            HostsRound.bed = Bed(hosts=3)
        self.stopped: list[tuple[Host, int]] = []
        self.cut_off: list[Host] = []
        self.powered_off: list[Host] = []
        # Whether the bed cannot be used for another round.
        self.is_broken = False
        self.poprun_killed = self.was_signalled = False
        # How many supervisors were killed on each host: where several were, files may
        # stay until the next job, as documented.
        self.supervisors_killed: Counter[str] = Counter()
        size = len(self.hosts) * self.dice.choice((1, 2, 4))
        path = "local" if mpi == "local" else mpirun_of(mpi)
        words = ["poprun", "--mpirun", path, "--offline-mode=yes", "--grace", "0.5"]
        words += ["--host", ",".join(self.hosts), "-n", str(size)]
        self.story.append(f"{size} x {self.kind}, {mpi}, on {','.join(self.hosts)}")
        program, self.life = JOBS[self.kind]
        self.log_out = os.open(os.devnull, os.O_WRONLY)
        self.process = self.own_bed.front.start(
            *(*words, *program, self.word),
            stdout=self.log_out,
            stderr=self.log,
        )
        os.close(self.log_out)

    @property
    def own_bed(self) -> Bed:
        assert HostsRound.bed is not None
        return HostsRound.bed

    def run(self) -> list[str]:
        """Harm the job, and return what is wrong after that."""
        wrong = []
        if self.kind not in ENDING or self.dice.random() < 0.8:
            for _ in range(self.dice.choice((1, 1, 2, 3))):
                time.sleep(
                    self.dice.choice((0.0, *[self.dice.uniform(0, self.life)] * 3))
                )
                self._harm()
        began = time.monotonic()
        try:
            self._wait_for_poprun()
        except subprocess.TimeoutExpired:
            wrong.append(f"poprun was still there after {HANGS_S} s")
            wrong += self.own_bed.leftovers()
            self.is_broken = True
        self.story.append(
            f"poprun ended with {self.process.returncode} after "
            f"{time.monotonic() - began:.1f} s"
        )
        wrong += self._wrong_words() if not wrong else []
        wrong += self._leftovers()
        if wrong:
            self._describe_threads()
        self._mend_all()
        if wrong or self.is_broken:
            self.own_bed.close()
            HostsRound.bed = None
        return wrong

    # --- What is done to a job.

    def _harm(self) -> None:
        weights = list(HARMS.values())
        harm = self.harm or self.dice.choices(list(HARMS), weights)[0]
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
                    signal.SIGKILL, "agent/entry.py|entry.py guard|entry.py shim"
                )
            case "kill" | "stop":
                number = signal.SIGKILL if harm == "kill" else signal.SIGSTOP
                self._send(number)
            case "signal":
                self._signal_poprun()
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

    def _send(self, number: int, pattern: str = "") -> None:
        """Send a signal to a process of the job whose words match a pattern."""
        parts = [part for part in self._parts() if re.search(pattern, part[2])]
        if not parts:
            self.story.append("nothing was there to harm")
            return
        host, pid, words = self.dice.choice(parts)
        if number == signal.SIGKILL and SUPERVISORS.search(words):
            self.supervisors_killed[host.name] += 1
        if "bin/poprun " in words:
            self.poprun_killed |= number == signal.SIGKILL
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

    def _signal_poprun(self) -> None:
        number = self.dice.choice(SIGNALS)
        self.story.append(f"{number.name} to poprun")
        self.was_signalled = True
        if self.process.poll() is None:
            self.process.send_signal(number)

    # --- What must be so after that.

    def _wait_for_poprun(self) -> None:
        """Wait until poprun has ended; end a job that the harm has not ended."""
        patience = self.dice.uniform(0.5, 3)
        if self.cut_off or self.powered_off:
            patience += 12
        try:
            self.process.wait(patience)
            return
        except subprocess.TimeoutExpired:
            self._continue_all()
        if self.kind not in ENDING:
            number = self.dice.choice((signal.SIGTERM, signal.SIGINT, signal.SIGKILL))
            self.story.append(f"{number.name} to poprun, which still runs")
            self.was_signalled = True
            self.poprun_killed |= number == signal.SIGKILL
            self.process.send_signal(number)
            self.process.wait(HANGS_S)
        self.process.wait(START_S + HANGS_S)

    def _continue_all(self) -> None:
        for host, pid in self.stopped:
            if host not in self.powered_off:
                host.run("kill", "-CONT", str(pid))
        self.stopped.clear()

    def _wrong_words(self) -> list[str]:
        """Return what is wrong with poprun's exit code and its words."""
        code = self.process.returncode
        text = os.pread(self.log, 1 << 20, 0).decode(errors="replace")
        wrong = []
        if OWN_FRAME.search(text):
            wrong.append("a traceback")
        if code < 0 and not (self.poprun_killed or self.was_signalled):
            wrong.append(f"poprun was ended by signal {-code}")
        if code > 0 and "poprun: error: " not in text and code != OUTPUT_CLOSED:
            wrong.append(f"exit code {code} without a word")
        if code == 0 and self.kind != "true":
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
