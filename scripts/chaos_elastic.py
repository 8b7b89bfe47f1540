"""Harm instances and hosts of elastic jobs at random, and check each sum after that.

    sudo python scripts/chaos_elastic.py --rounds 100

Each round starts a job of six instances on three hosts, or on one, which add up numbers
of their own again and again. One to four times it does a harm, at a random time after
the one before:

    kill, kill-two: kill instances; kill-newcomer: one, and the process in its place
    kill-shim, kill-guard, kill-agent: kill the supervisor of an instance or a host
    kill-host, cut: kill a host or cut it off; return: bring such a host back
    kill-hosts: kill two hosts at once
    blink, cut-return: cut a host off for up to 2 or 12 seconds
    drop: let the discovery script print a host no longer, and sometimes again later;
        kill an instance meanwhile, or the host
    part: two hosts reach poprun, but not each other, for up to 20 seconds
    stop-poprun, stop-agent: stop poprun or an agent for up to 12 seconds
    stop, stop-host: stop an instance or a host for up to 8 seconds; stop-kill: and kill
        an instance meanwhile
    two: two harms at once that cost instances
    end: kill poprun, or send it a signal

The others must go on: each sum must be that of the members that poprun names, with the
same state on all of them. What was only stopped must take part again, and a host that
returns must join a job with --max-restarts. Then the job is told to end, and must exit
with 0; 20 seconds later nothing of it may be left on any host. --harm chooses one kind,
and --seed and --first repeat a round.

At the end it prints how often each harm was done, and the times to the next right sum.
"""

import argparse
import itertools
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection
from typing import ClassVar

from chaos_round import ChaosRound, make_parser, run_rounds
from elastic_bed import SIZE, ElasticBed, Host, Process, pids, wait_until

LEAST = 2
# A host that is cut off is lost for poprun after five to six seconds.
GOES_ON_S, ENDS_S, GONE_S = 60.0, 60.0, 20.0
# A lost host is left alone for 20 seconds, after a second loss for 40.
JOINS_S = 120.0
# No host has it.
NO_MAC = "02:00:00:00:ff:ff"
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


class ElasticRound(ChaosRound):
    """One elastic job, and what is done to it."""

    # In all rounds: how often each harm was done, and the seconds until the next sum.
    counts: ClassVar[Counter[str]] = Counter()
    times: ClassVar[list[tuple[str, float]]] = []
    # The rounds without harm: a busy machine may not answer ssh in time.
    num_not_begun: ClassVar[int] = 0

    def __init__(self, number: int, options: argparse.Namespace) -> None:
        super().__init__(number, options.seed)
        self.options = options
        drops = options.harm == "drop"
        self.restarts = 3 if drops else self.dice.choice((0, 0, 3))
        words = ["--min-instances", str(LEAST), "--max-restarts", str(self.restarts)]
        words += ["--keep-going"] * (self.dice.random() < 0.15)
        hosts = self.dice.choice(("h0,h1,h2", "h1,h0,h2"))
        hosts = "h0" if self.dice.random() < 0.15 and not drops else hosts
        # The hosts that a discovery script prints.
        self.printed = hosts.split(",")
        self.story[0] += f" of seed {options.seed}: {' '.join(words)} --host {hosts}"
        self.job = ElasticBed()
        self.bed = self.job.bed
        self.job.start(self.log, *words, hosts=hosts, by_script=self.restarts > 0)
        # The harms that were done; the processes that were killed or whose hosts may
        # be lost; and the hosts that cannot be reached.
        self.done: list[str] = []
        self.doomed: set[str] = set()
        self.unreachable: list[str] = []
        # Of a harm: when it was done, the processes that must take part in a sum after
        # it, and the host on which a new one must.
        self.done_at = 0.0
        self.must_go_on: Collection[str] = ()
        self.must_join = ""
        self.signal_sent: signal.Signals | None = None

    def run(self) -> list[str]:
        """Harm the job, and return what is wrong after that."""
        with self.job:
            try:
                wrong = self._run()
                print(f"{self.story[0]}: {', '.join(self.done) or 'none'}", flush=True)
                return wrong
            finally:
                self.job.process.kill()
                self.job.process.wait()

    def _run(self) -> list[str]:
        if not wait_until(lambda: len(self.job.sums.read()) > SIZE, GOES_ON_S):
            ElasticRound.num_not_begun += 1
            self._signal(signal.SIGTERM)
        elif len(self._living()) < SIZE:
            ElasticRound.num_not_begun += 1
        else:
            for _ in range(self.dice.choice((1, 2, 3, 4))):
                time.sleep(self.dice.uniform(0, 1.5))
                if wrong := self._do(self.options.harm or self.dice.choice(ALL)):
                    return [wrong, *self.job.wrong_sums()]
        return self._end()

    def _do(self, harm: str) -> str:
        """Do a harm, if enough is left after that; return what is wrong then."""
        if self.signal_sent:
            return ""
        earlier = list(self.job.sums.read())
        before = max(one.members_of for one in earlier)
        known = {one.process for one in earlier}
        self.must_go_on, self.must_join = (), ""
        changes = HARMS[harm](self)
        if changes is None:
            return ""
        ElasticRound.counts[harm] += 1
        self.done.append(harm)
        if self.signal_sent:
            return ""

        def times() -> list[float]:
            """Return the times of the sums after the harm that have all it asks for."""
            sums = self.job.sums.read()[len(earlier) :]
            sums = [one for one in sums if one.at > self.done_at]
            if not {one.process for one in sums}.issuperset(self.must_go_on):
                return []
            if self.must_join:
                sums = [s for s in sums if s.host == self.must_join]
                sums = [s for s in sums if s.process not in known]
            return [s.at for s in sums if not changes or s.members_of > before]

        limit = JOINS_S if self.must_join else GOES_ON_S
        if not wait_until(lambda: bool(times()), limit):
            return f"no sum that there must be came after {harm} within {limit} s"
        seconds = min(times()) - self.done_at
        ElasticRound.times.append((harm, seconds))
        self.story.append(f"{harm}: the next sum came after {seconds:.2f} s")
        return ""

    def _end(self) -> list[str]:
        (self.job.folder / "stop").touch()
        wrong = []
        process = self.job.process
        if not wait_until(lambda: process.poll() is not None, ENDS_S):
            wrong.append(f"poprun was still there after {ENDS_S} s")
        elif self.signal_sent is None and process.returncode:
            wrong.append(f"exit code {process.returncode}")
        elif self.signal_sent is not None and not process.returncode:
            wrong.append("exit code 0 after a signal")
        wrong += self.job.wrong_sums()
        if not wait_until(lambda: not self._left(), GONE_S):
            wrong += self._left()
        return wrong

    def _left(self) -> list[str]:
        """Return what is left: sshd need not know yet that a host is cut off."""
        return [one for one in self.bed.leftovers() if "sshd" not in one]

    def _living(self) -> list[Process]:
        return [
            process
            for process in self.job.processes()
            if process.name not in self.doomed
            and process.host.name not in self.unreachable
        ]

    def _choose_host(self) -> Host | None:
        """Choose a host that may be lost, which has living instances."""
        living = self._living()
        names = sorted({p.host.name for p in living} - {self.bed.front.name})
        names = [n for n in names if sum(p.host.name != n for p in living) >= LEAST]
        return self.bed[self.dice.choice(names)] if names else None

    def _doom_host(self, host: Host) -> None:
        self.doomed |= {p.name for p in self._living() if p.host is host}

    def _kill_pid(self, host: Host, pid: int, what: str) -> None:
        self.story.append(f"SIGKILL to {what} {pid} on {host.name}")
        host.run("kill", "-KILL", str(pid))
        self.done_at = time.monotonic()

    def _signal(self, number: signal.Signals) -> None:
        self.story.append(f"{number.name} to poprun")
        self.job.process.send_signal(number)
        self.signal_sent = number

    # --- The harms. They return whether members must change; None: it was not done.

    def _kill(self, number: int = 1) -> bool | None:
        living = self._living()
        if len(living) - number < LEAST:
            return None
        for process in self.dice.sample(living, number):
            self._kill_pid(process.host, process.pid, f"instance {process.name}")
            self.doomed.add(process.name)
        return True

    def _kill_two(self) -> bool | None:
        return self._kill(2)

    def _kill_newcomer(self) -> bool | None:
        """Kill an instance, and the process that is started in its place."""
        if not self.restarts or self._kill() is None:
            return None
        known = {(p.host.name, p.pid) for p in self.job.processes()}
        newcomers: list[tuple[Host, int]] = []

        def has_come() -> bool:
            for host in self.bed.hosts:
                for pid in pids(host, f": python3 {self.job.program}"):
                    if (host.name, pid) not in known:
                        newcomers.append((host, pid))
            return bool(newcomers)

        if wait_until(has_come, 3):
            time.sleep(self.dice.uniform(0, 0.5))
            self._kill_pid(*newcomers[0], "the newcomer")
        return True

    def _kill_shim(self) -> bool | None:
        living = self._living()
        if len(living) <= LEAST:
            return None
        process = self.dice.choice(living)
        self.doomed.add(process.name)
        self._kill_pid(process.host, process.parent, f"the shim of {process.name}")
        return True

    def _kill_guard(self) -> bool | None:
        host = self.dice.choice(sorted({p.host for p in self._living()}, key=str))
        guards = pids(host, "entry.py guard")
        if not guards:
            return None
        self._kill_pid(host, self.dice.choice(guards), "a guard")
        return False

    def _kill_agent(self) -> bool | None:
        if (host := self._choose_host()) is None:
            return None
        self._doom_host(host)
        self._kill_pid(host, pids(host, "agent_entry.py")[0], "the agent")
        return True

    def _lose_host(self, lose: Callable[[Host], None], what: str) -> bool | None:
        if (host := self._choose_host()) is None:
            return None
        self.story.append(f"{host.name} is {what}")
        self._doom_host(host)
        self.unreachable.append(host.name)
        lose(host)
        self.done_at = time.monotonic()
        return True

    def _kill_host(self) -> bool | None:
        return self._lose_host(Host.kill, "killed")

    def _kill_hosts(self) -> bool | None:
        living = [p for p in self._living() if p.host is self.bed.front]
        hosts = {p.host for p in self._living()} - {self.bed.front}
        if len(living) < LEAST or len(hosts) < 2:
            return None
        self.story.append("both other hosts are killed")
        for host in hosts:
            self._doom_host(host)
            self.unreachable.append(host.name)
            host.kill()
        self.done_at = time.monotonic()
        return True

    def _cut(self) -> bool | None:
        return self._lose_host(lambda host: host.link.cut(), "cut off")

    def _return(self) -> bool | None:
        """Bring a host back that was lost, or lose one first."""
        if not self.unreachable:
            lose = self.dice.choice((self._kill_host, self._cut))
            if lose() is None:
                return None
            # A host that is silent for less than 8 s is not lost, and need not join.
            time.sleep(self.dice.uniform(9 if lose == self._cut else 0, 12))
        name = self.unreachable.pop()
        self.story.append(f"{name} returns")
        if name not in self.printed:
            self.printed.append(name)
            self.job.print_hosts(self.printed)
        if self.bed[name].namespaces.is_alive:
            self.bed[name].link.mend()
        else:
            self.bed.power_on(name)
        self.done_at = time.monotonic()
        # Without restarts, no host joins the job.
        self.must_join = name if self.restarts else ""
        return False

    def _drop(self) -> bool | None:
        """Let the script print a host no longer; its state must not be lost."""
        host = self._choose_host()
        if not self.restarts or host is None or len(self.printed) < 3:
            return None
        self.printed.remove(host.name)
        self.job.print_hosts(self.printed)
        what = self.dice.choice(("", "", "kill", "kill-host", "return"))
        self.story.append(f"{host.name} is printed no longer; {what}")
        self._doom_host(host)
        self.done_at = time.monotonic()
        time.sleep(self.dice.uniform(0, 3))
        if what == "kill":
            self._kill()
        elif what == "kill-host":
            self.unreachable.append(host.name)
            host.kill()
        elif what == "return":
            # Perhaps before poprun has seen it.
            self.printed.append(host.name)
            self.job.print_hosts(self.printed)
        return what != "return"

    def _blink(self, longest: float = 2) -> bool | None:
        if (host := self._choose_host()) is None:
            return None
        seconds = self.dice.uniform(0.1, longest)
        if seconds > 3:
            self._doom_host(host)
        self.story.append(f"{host.name} is cut off for {seconds:.1f} s")
        host.link.cut()
        time.sleep(seconds)
        host.link.mend()
        self.done_at = time.monotonic()
        return False

    def _cut_return(self) -> bool | None:
        return self._blink(12)

    def _part(self) -> bool | None:
        """Let the hosts beside poprun's send each other nothing for some seconds."""
        hosts = {p.host for p in self._living()}
        others = hosts - {self.bed.front}
        if len(hosts) < 3:
            return None
        seconds = self.dice.uniform(0.1, 20)
        names = " and ".join(sorted(host.name for host in others))
        self.story.append(f"{names} do not reach each other for {seconds:.1f} s")
        pairs = list(itertools.permutations(others))
        for host, peer in pairs:
            neighbour = "replace", peer.address, "lladdr", NO_MAC, "nud", "permanent"
            host.output("ip", "neighbour", *neighbour, "dev", "eth0")
        time.sleep(seconds)
        for host, peer in pairs:
            host.output("ip", "neighbour", "del", peer.address, "dev", "eth0")
        self.done_at = time.monotonic()
        if seconds > 3:
            # poprun takes one of them as lost.
            for host in others:
                self._doom_host(host)
        return False

    def _stop_poprun(self) -> bool | None:
        seconds = self.dice.uniform(0.1, 12)
        self.story.append(f"poprun is stopped for {seconds:.1f} s")
        self.job.process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        self.job.process.send_signal(signal.SIGCONT)
        self.done_at = time.monotonic()
        self.must_go_on = [p.name for p in self._living()]
        return False

    def _stop_agent(self) -> bool | None:
        if (host := self._choose_host()) is None:
            return None
        agent = str(pids(host, "agent_entry.py")[0])
        seconds = self.dice.uniform(0.1, 12)
        self.story.append(f"the agent on {host.name} is stopped for {seconds:.1f} s")
        host.run("kill", "-STOP", agent)
        time.sleep(seconds)
        host.run("kill", "-CONT", agent)
        self.done_at = time.monotonic()
        self.must_go_on = [p.name for p in self._living() if p.host is host]
        return False

    def _stop(self, *, kills: bool = False) -> bool | None:
        living = self._living()
        if len(living) < LEAST + kills:
            return None
        process, other = self.dice.sample(living, 2)
        seconds = self.dice.uniform(0.1, 8)
        self.story.append(f"{process.name} is stopped for {seconds:.1f} s")
        process.host.run("kill", "-STOP", str(process.pid))
        if kills:
            self.doomed.add(other.name)
            self._kill_pid(other.host, other.pid, f"instance {other.name}")
        time.sleep(seconds)
        process.host.run("kill", "-CONT", str(process.pid))
        self.done_at = time.monotonic()
        self.must_go_on = [process.name]
        return kills

    def _stop_kill(self) -> bool | None:
        return self._stop(kills=True)

    def _stop_host(self) -> bool | None:
        if (host := self._choose_host()) is None:
            return None
        seconds = self.dice.uniform(0.1, 8)
        self.must_go_on = [p.name for p in self._living() if p.host is host]
        self.story.append(f"{host.name} is stopped for {seconds:.1f} s")
        host.pause()
        time.sleep(seconds)
        host.resume()
        self.done_at = time.monotonic()
        return False

    def _two(self) -> bool | None:
        done = [HARMS[harm](self) for harm in self.dice.sample(LOSSES, 2)]
        return None if done == [None, None] else True

    def _end_poprun(self) -> bool | None:
        self._signal(self.dice.choice(SIGNALS))
        return False


HARMS: dict[str, Callable[[ElasticRound], bool | None]] = {
    "kill": ElasticRound._kill,
    "kill-two": ElasticRound._kill_two,
    "kill-newcomer": ElasticRound._kill_newcomer,
    "kill-shim": ElasticRound._kill_shim,
    "kill-guard": ElasticRound._kill_guard,
    "kill-agent": ElasticRound._kill_agent,
    "kill-host": ElasticRound._kill_host,
    "kill-hosts": ElasticRound._kill_hosts,
    "cut": ElasticRound._cut,
    "return": ElasticRound._return,
    "drop": ElasticRound._drop,
    "blink": ElasticRound._blink,
    "cut-return": ElasticRound._cut_return,
    "part": ElasticRound._part,
    "stop-poprun": ElasticRound._stop_poprun,
    "stop-agent": ElasticRound._stop_agent,
    "stop": ElasticRound._stop,
    "stop-kill": ElasticRound._stop_kill,
    "stop-host": ElasticRound._stop_host,
    "two": ElasticRound._two,
    "end": ElasticRound._end_poprun,
}
ALL = list(HARMS)
LOSSES = ["kill", "kill-shim", "kill-agent", "kill-host", "cut"]


def main() -> int:
    parser = make_parser(str(__doc__), rounds=20)
    parser.add_argument("--harm", choices=ALL)
    options = parser.parse_args()
    failed = run_rounds(options, lambda number: ElasticRound(number, options))
    total = ElasticRound.counts.total()
    print(
        f"{options.rounds} rounds, {failed} of them failed, "
        f"{ElasticRound.num_not_begun} have not begun; {total} harms:"
    )
    for harm in ALL:
        seconds = [s for name, s in ElasticRound.times if name == harm]
        text = f"    {harm}: {ElasticRound.counts[harm]}"
        if seconds:
            middle = statistics.median(seconds)
            text += f"; next sum after {middle:.2f} s (median), {max(seconds):.2f} s"
        print(text, "at most" if seconds else "")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
