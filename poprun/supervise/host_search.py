"""Looks at the hosts while an elastic job runs, by a process of its own.

The process is reach/host_search.py. It ends with poprun, however that ends.
"""

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf
from typing import Any

from poprun.backoff import doubled_wait
from poprun.helpers import processes
from poprun.host_specs import HostSpec, parse_hosts
from poprun.output.waiter import READ, Interest
from poprun.plan.elastic import DISCOVERY, Members, choose_members
from poprun.reach import host_search
from poprun.reach.discovery import MOST_OUTPUT
from poprun.reach.host_search import END_S, LONGEST_PAUSE_S, SearchQuestion
from poprun.reach.hosts import PREFLIGHT_MARK
from poprun.wire.events import HostsAvailable

ENTRY = os.path.join(os.path.dirname(host_search.__file__), "host_search_entry.py")
# By the option with a list of hosts: how a message says that the list has a host no
# longer. Slurm ends the processes on nodes that it takes away, so it needs none.
LISTS = {
    DISCOVERY: "discovery script no longer prints",
    "hostfile": "hostfile no longer names",
}
# Follows the clause that hosts are named no longer.
ARE_NEEDED = (
    ", but the job keeps its hosts: the others are fewer than --min-instances or "
    "--nnodes allow."
)
# The wait before a process that has ended is replaced for the first time.
FIRST_PAUSE_S = 10.0
# The longest answer, in bytes: it may have all hosts of the longest list twice.
LONGEST_ANSWER = 2 * MOST_OUTPUT
# How long the process may take to read a question that the socket cannot hold.
SEND_S = 2.0


class HostSearch:
    """The search for hosts that a job is to use, and for those that are to leave it.

    Args:
        question: The job now.
        mark: NAME=VALUE in the environment of every process of the job.
        warn: Says why hosts cannot be found.
        refuse: Returns why the job cannot have the instances that have room; "" if it
            can.
    """

    def __init__(
        self,
        question: SearchQuestion,
        environ: Mapping[str, str],
        mark: str,
        warn: Callable[[str], None],
        refuse: Callable[[HostsAvailable], str] = lambda growth: "",
    ) -> None:
        self._question, self._warn, self._refuse = question, warn, refuse
        own_mark = f"{PREFLIGHT_MARK}={os.urandom(16).hex()}"
        self._own_mark = os.fsencode(own_mark)
        # The guard ends the processes with the job's mark if poprun is killed.
        marks = dict(each.split("=", 1) for each in (mark, own_mark))
        pairs = {**environ, **marks}.items()
        self._environ = {os.fsencode(k): os.fsencode(v) for k, v in pairs if k}
        self._link: socket.socket | None = None
        self._pid = 0
        self._received = b""
        self._answer: HostsAvailable | None = None
        settings = question.settings
        lists = (text for name, text in LISTS.items() if settings.get(name) is not None)
        self._list = next(lists, "")
        # The hosts of the job that are not.
        self.missing: Sequence[str] = ()
        self._warnings: set[str] = set()
        # When to start the process, and how often that was put off.
        self._starts_at, self._num_pauses = inf, 0

    def begin(self) -> None:
        """Begin to look for hosts, unless that has begun."""
        if self._link is None and self._starts_at == inf:
            self._starts_at = time.monotonic()

    def take(self) -> HostsAvailable | None:
        """Return the answer that has come and is accepted, once."""
        answer, self._answer = self._answer, None
        if answer is not None and (refusal := self._refuse(answer)):
            self._warn_once(refusal)
            return None
        return answer

    def interests(self, now: float) -> Iterator[Interest]:
        if self._link is not None:
            yield Interest(self._link.fileno(), READ, self._receive)

    def deadline(self, now: float) -> float:
        return self._starts_at

    def tick(self, now: float) -> None:
        if now >= self._starts_at:
            self._starts_at = inf
            self._start()

    def send_signal(self, number: int) -> None:
        """Stop or continue the process."""
        if (own := processes.process(self._pid)) and own.parent == os.getpid():
            processes.send(number, own)

    def end(self) -> None:
        """Let the process end, and all that it has started, without waiting for it."""
        is_running = self._link is not None
        self._close()
        if is_running:
            for number in (signal.SIGTERM, signal.SIGCONT):
                self.send_signal(number)

    @property
    def is_ending(self) -> bool:
        """Whether the process is still there."""
        own = processes.process(self._pid)
        return own is not None and own.parent == os.getpid()

    def finish(self) -> None:
        """End the process and all that it has started."""
        self._close()
        if self._pid:
            processes.end(self._tree, 0, END_S)
            self._pid = 0

    def _start(self) -> None:
        # Perhaps some of it has been started since the first time.
        processes.kill(self._tree())
        ours, theirs = socket.socketpair()
        theirs.set_inheritable(True)
        errors = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        argv = map(os.fsencode, (sys.executable, "-I", ENTRY, str(os.getpid())))
        try:
            self._pid = processes.spawn(
                argv, self._environ, errors, stdout=theirs.fileno(), setsid=True
            )
        except OSError as error:
            ours.close()
            self._warn_once(f"poprun cannot look for more hosts: {error.strerror}.")
            self._wait_to_start()
            return
        finally:
            theirs.close()
            os.close(errors)
        self._link = ours
        # A question is short: more than the socket holds would be read soon.
        ours.settimeout(SEND_S)
        try:
            ours.sendall(self._question.encode())
        except OSError:
            self._restart()

    def _wait_to_start(self) -> None:
        pause = doubled_wait(FIRST_PAUSE_S, self._num_pauses, LONGEST_PAUSE_S)
        self._starts_at = time.monotonic() + pause
        self._num_pauses += 1

    def _restart(self) -> None:
        """End the process without waiting for it, and start it again later."""
        self._close()
        processes.kill(self._tree())
        self._warn_once("The search for more hosts has ended; it begins again.")
        self._wait_to_start()

    def _receive(self) -> None:
        assert self._link is not None
        try:
            data = self._link.recv(LONGEST_ANSWER)
        except ConnectionError:
            data = b""
        *lines, self._received = (self._received + data).split(b"\n")
        try:
            for line in lines:
                self._take_in(json.loads(line))
        except (ValueError, KeyError, TypeError):
            data = b""
        if not data or len(self._received) > LONGEST_ANSWER:
            self._restart()

    def _take_in(self, message: Mapping[str, Any]) -> None:
        if failure := message.get("failure"):
            self._warn_once(str(failure))
            return
        self.missing = [str(name) for name in message["missing"] if self._list]
        names = ",".join(map(str, message["hosts"]))
        self._answer = self._decide(parse_hosts(names) if names else ())

    def describe_missing(self, *hosts: str) -> str:
        """Return the clause that hosts are named no longer."""
        return f"the {self._list} {' and '.join(hosts)}"

    def _decide(self, usable: Sequence[HostSpec]) -> HostsAvailable | None:
        """Return the hosts with more instances, or without those that are missing.

        Args:
            usable: All hosts that can be used, if new ones among them are of use.
        """
        question, missing = self._question, self.missing
        members, bounds = question.members, question.bounds
        if bounds.share:
            # Instances run on meanwhile, so each missing host leaves on its own.
            joined = question.find_growth(usable, missing)
            return None if joined is None else self._available(usable, joined)
        named = usable or [host for host in members.hosts if host.name not in missing]
        kept = [host for host in members.hosts if host.name in missing]
        for host in kept[::-1]:
            others = [*named, *(other for other in kept if other != host)]
            if choose_members(others, bounds).num_instances >= bounds.least_instances:
                kept.remove(host)
        kept_names = {host.name for host in kept}
        dropped = [name for name in missing if name not in kept_names]
        if missing and not dropped:
            why = self.describe_missing(*missing)
            self._warn_once(f"{why[:1].upper()}{why[1:]}{ARE_NEEDED}")
        next_members = choose_members([*named, *kept], bounds)
        if dropped or next_members.num_instances > members.num_instances:
            return self._available([*named, *kept], next_members, dropped)
        return None

    def _available(
        self, hosts: Sequence[HostSpec], chosen: Members, dropped: Sequence[str] = ()
    ) -> HostsAvailable:
        present = self._question.members
        new = [host.name for host in chosen.hosts if host.name not in present.names]
        return HostsAvailable(
            hosts=tuple(map(str, hosts)),
            new_hosts=tuple(new),
            num_running=present.num_instances,
            num_instances=chosen.num_instances,
            dropped=self.describe_missing(*dropped) if dropped else "",
        )

    def _warn_once(self, sentence: str) -> None:
        if sentence not in self._warnings:
            self._warnings.add(sentence)
            self._warn(sentence)

    def _close(self) -> None:
        self._received, self._starts_at, self.missing = b"", inf, ()
        if self._link is not None:
            self._link.close()
            self._link = None

    def _tree(self) -> list[processes.Process]:
        """Return the process and all that it has started, even if it was killed."""
        own = processes.process(self._pid)
        tree = processes.with_variable(self._own_mark)
        if own is not None and own.parent == os.getpid() and not own.zombie:
            return [own, *processes.descendants([self._pid]), *tree]
        return tree
