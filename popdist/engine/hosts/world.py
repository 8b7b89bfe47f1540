"""The instances of a job as links connect them: their hosts, and their deaths."""

import select
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from threading import Lock
from time import monotonic
from typing import Any, NamedTuple

from popdist.engine.hosts.links import LinkError, Links
from popdist.engine.hosts.mail import Mail
from popdist.engine.hosts.tcp.listener import TcpRoot
from popdist.engine.meet.meeting import read_ended
from popdist.engine.meet.pidfds import Pidfd
from popdist.errors import ArenaError

# How many bytes of a host's name are shown, and identify it.
_NAME_BYTES = 64
# How long messages to instances may wait until they can be sent: the processes may be
# stopped. Connections to hosts that do not answer fail by then.
_REACH_SECONDS = 6.0
# How long the message to one more instance may wait after that; most answer at once.
_LATE_SECONDS = 0.5
# How often the launcher's file of ended instances is read.
_FILE_SECONDS = 0.2


class JobHosts(NamedTuple):
    """The hosts of a job's instances, as far as this instance knows them.

    rank: This instance.
    size: The number of instances.
    host: The name of this host, unique in the job.
    shared_name: The prefix of the names of groups on this host; others may differ.
    per_host: The number of instances of each host, in order; empty if it is unknown.
    version: The version of popdist in this instance.
    tcp: Where links by TCP begin, if they are to use TCP and no MPI.
    look_up: Returns the same where only a store of the instances tells it.
    """

    rank: int
    size: int
    host: str
    shared_name: str = ""
    per_host: tuple[int, ...] = ()
    version: str = ""
    tcp: TcpRoot | None = None
    look_up: Callable[[], TcpRoot] | None = None

    @property
    def uses_mpi(self) -> bool:
        """Whether an MPI has started the job, and is to connect its hosts."""
        return self.tcp is None and self.look_up is None

    @property
    def hosts(self) -> tuple[int, ...] | None:
        """The number of the host of each instance, if the launcher says so."""
        if not self.per_host:
            return None
        return tuple(
            host for host, count in enumerate(self.per_host) for _ in range(count)
        )


class World:
    """The instances of a job as links connect them."""

    def __init__(self, job_hosts: JobHosts, links: Links) -> None:
        """Learn where all processes of the job are, once all of them come to this."""
        self.links = links
        self.rank, self.size = job_hosts.rank, job_hosts.size
        # The number of the host of each instance, and its name.
        self.hosts, self.names = self._gather_hosts(job_hosts)
        self.mail = Mail(links, self.size)
        # The instances that have died, and when this one was told.
        self.dead: dict[int, float] = {}
        # Instances that a group has lost. They may be dead, so nothing is sent to them,
        # because MPICH, where it is the links, would crash.
        self.lost: set[int] = set()
        # Instances that have left a group without a message about their end.
        self.going_on: set[int] = set()
        # The message that this process sent when it left a group, by the group.
        self.leavings: dict[str, dict[str, Any]] = {}
        # Whether this process ends, and leaves its groups for that reason.
        self.ends = False
        # The launcher appends the ended instances of any host to this file.
        self.ended_file = ""
        self._file_read = 0.0
        # A pidfd of each instance of this host that this one has met.
        self.pidfds: dict[int, Pidfd] = {}
        # Called several times a second in the thread beside the program.
        self.watchers: set[Callable[[], None]] = set()
        # Called at once with each instance that has died.
        self.death_callbacks: set[Callable[[int], None]] = set()
        # Functions that return whether a group is in a call, and functions to call when
        # this process makes no more calls.
        self.callers: set[Callable[[], bool | None]] = set()
        self.leavers: set[Callable[[], None]] = set()
        # Whether the links cannot be closed: another process never does so.
        self.is_broken = False
        # Whether this process has left all groups, and sends nothing any more.
        self.is_abandoned = False
        self._next_tag = 16
        self._lock = Lock()

    def new_tag(self, count: int) -> int:
        """Return the first of so many tags of messages to this process, all unused."""
        with self._lock:
            self._next_tag += count
            if self._next_tag > self.links.most_tag:
                raise ArenaError(
                    "This process has made so many groups over several hosts that no "
                    "tags are left for another one. Create groups once and keep them."
                )
            return self._next_tag - count

    def look(self) -> None:
        """Take messages that have arrived, and let groups read them."""
        self.find_deaths()
        if self.mail.of("quit"):
            self.is_broken = True
        for message in self.mail.of("asks"):
            leaving = self.leavings.get(message["about"])
            if leaving is not None:
                self.tell([message["from"]], {**leaving, "late": True})
        self.watch_this_host()
        for watcher in list(self.watchers):
            watcher()

    def find_deaths(self) -> None:
        """Learn from messages and from the launcher which instances have died."""
        self.mail.take()
        for message in self.mail.of("died"):
            self.note_death(message["instance"])
        for instance in self.links.failed.keys() - self.dead.keys():
            self.note_death(instance)
        if self.ended_file and monotonic() - self._file_read > _FILE_SECONDS:
            self._file_read = monotonic()
            for instance in read_ended(self.ended_file):
                self.note_death(instance)

    def note_death(self, instance: int) -> None:
        """Remember that an instance has died."""
        self.is_broken = True
        if instance in self.dead:
            return
        self.dead[instance] = monotonic()
        for callback in list(self.death_callbacks):
            callback(instance)

    def note_leaving(self, instance: int, *, ends: bool) -> None:
        """Remember that an instance has left a group, as it ends or to go on."""
        if ends:
            self.going_on.discard(instance)
        else:
            self.going_on.add(instance)

    def tell_others(self, message: dict[str, Any], *, here: bool = False) -> None:
        """Send a message to all instances on other hosts, if `here` on this one too."""
        own, others = self.hosts[self.rank], set(range(self.size)) - {self.rank}
        self.tell([i for i in others if here or self.hosts[i] != own], message)

    def tell(self, instances: Sequence[int], message: dict[str, Any]) -> None:
        """Send a message to those of the instances that can be reached."""
        if self.is_abandoned:
            return
        until = monotonic() + _REACH_SECONDS
        for instance in instances:
            # At the end of this process each of them must be sent.
            seconds = inf if self.ends else max(until - monotonic(), _LATE_SECONDS)
            with suppress(LinkError):
                if self.may_reach(instance, seconds):
                    self.mail.send(instance, message)

    def may_reach(self, instance: int, seconds: float = inf) -> bool:
        """Return whether messages may be sent to an instance.

        Args:
            seconds: How long to wait at most until they may.
        """
        until = monotonic() + seconds
        is_ready = self.prepare(
            instance, lambda: instance in self.dead or monotonic() > until
        )
        return is_ready and instance not in self.dead and instance not in self.lost

    def prepare(self, instance: int, is_over: Callable[[], bool]) -> bool:
        """Block until a message may be sent to an instance; return whether it may.

        Args:
            is_over: Called now and then; returns whether to wait no longer.
        """
        here = self.hosts[self.rank]

        def count_deaths() -> int:
            self.find_deaths()
            return sum(self.hosts[instance] != here for instance in self.dead)

        return self.links.prepare(instance, count_deaths, is_over)

    def watch_this_host(self) -> None:
        """Tell the instances on other hosts which ones have died on this host.

        No process ends well before all others have come to their end, too.
        """
        poll = select.poll()
        alive = {i: pidfd for i, pidfd in self.pidfds.items() if i not in self.dead}
        for pidfd in alive.values():
            poll.register(pidfd.fileno(), select.POLLIN)
        # The process has ended, or the program has closed the descriptor.
        changed = {fd for fd, _ in poll.poll(0)}
        for instance, pidfd in alive.items():
            if pidfd.fileno() in changed and pidfd.has_ended:
                self.note_death(instance)
                self.tell_others({"kind": "died", "instance": instance})

    def _gather_hosts(
        self, job_hosts: JobHosts
    ) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Return the host of each instance, and their names."""
        own = f"{socket.gethostname()[:_NAME_BYTES]}\0{job_hosts.host}".encode()
        length = 2 * _NAME_BYTES
        gathered = self.links.gather(own[:length].ljust(length, b"\0"))
        numbers: dict[bytes, int] = {}
        hosts = tuple(numbers.setdefault(name, len(numbers)) for name in gathered)
        names = [name.split(b"\0")[0].decode(errors="replace") for name in gathered]
        return job_hosts.hosts or hosts, tuple(names)
