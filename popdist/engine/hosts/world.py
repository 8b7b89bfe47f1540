"""The instances of a job as MPI connects them: where they are, and which have died."""

import select
import socket
import threading
from collections.abc import Callable, Set
from contextlib import suppress
from threading import Lock
from time import monotonic, sleep
from typing import Any, NamedTuple

import numpy as np

from popdist.engine.hosts.arrivals import Arrivals
from popdist.engine.hosts.mail import Mail
from popdist.engine.meet.pidfds import Pidfd
from popdist.errors import ArenaError

# How many bytes of a host's name are shown, and identify it.
_NAME_BYTES = 64
# Of how many ports that MPI listens on each process tells the others.
_MOST_PORTS = 16
# How often the launcher's file of ended instances is read.
_FILE_SECONDS = 0.2
# For how long after processes have hung up nothing is sent: by then it is known which.
# The shorter time is for as many hangups as there are deaths known.
_NEWS_SECONDS, _MORE_NEWS_SECONDS = 3.0, 0.5


class JobHosts(NamedTuple):
    """Which instances of a job are on which host, as far as this one is told.

    rank: This instance.
    size: How many there are.
    host: What this host is called in this job, and no other one.
    shared_name: What the names of groups begin with here; on other hosts it may differ.
    per_host: How many each host has, in their order; empty if it is not told.
    version: What popdist this instance has.
    """

    rank: int
    size: int
    host: str
    shared_name: str = ""
    per_host: tuple[int, ...] = ()
    version: str = ""

    @property
    def hosts(self) -> tuple[int, ...] | None:
        """The number of the host of each instance, if the launcher says so."""
        if not self.per_host:
            return None
        return tuple(
            host for host, count in enumerate(self.per_host) for _ in range(count)
        )


class World:
    """The instances of a job as MPI connects them."""

    def __init__(self, job_hosts: JobHosts, mpi: Any, ports: Set[int]) -> None:
        """Meet all processes of the job.

        Args:
            ports: On which MPI listens in this process, if it crashes where something
                is sent to a process that has died.
        """
        # Any: mpi4py is imported only where it is needed.
        self.mpi = mpi
        self.rank, self.size = job_hosts.rank, job_hosts.size
        self.comm = _wait_for(*mpi.COMM_WORLD.Idup())
        self.comm.Set_errhandler(mpi.ERRORS_RETURN)
        # The number of the host of each instance, and what that is called.
        self.hosts, self.names, all_ports = self._gather_hosts(job_hosts, ports)
        self.mail = Mail(mpi, self.comm)
        self.arrivals = Arrivals(all_ports)
        # The instances that have died, and when this one was told.
        self.dead: dict[int, float] = {}
        # Those on other hosts whose hangups are reported no more.
        self._forgotten_deaths = 0
        # Those that a group has lost, of which it may not be known whether they have
        # died. MPI must not be asked to reach one that has: MPICH would crash.
        self.lost: set[int] = set()
        # Those that have left a group, and have not told that they end.
        self.going_on: set[int] = set()
        # What this process has told others when it left a group, by the group.
        self.leavings: dict[str, dict[str, Any]] = {}
        # Whether this process ends, and leaves its groups for that reason.
        self.ends = False
        # To which the launcher appends the instances that have ended, on any host.
        self.ended_file = ""
        self._file_read = 0.0
        # A pidfd of each instance of this host that this one has met.
        self.pidfds: dict[int, Pidfd] = {}
        # Called several times a second in the thread beside the program.
        self.watchers: set[Callable[[], None]] = set()
        # What tells whether a group is in a call, and what is called when this process
        # makes no calls any more.
        self.callers: set[Callable[[], bool | None]] = set()
        self.leavers: set[Callable[[], None]] = set()
        # Buffers of messages that were under way when their group came to its end.
        self.abandoned: list[object] = []
        # Whether MPI cannot be finalised: another process never does so.
        self.is_broken = False
        self._next_tag = 16
        self._lock = Lock()

    def new_tag(self, count: int) -> int:
        """Return the first of so many tags of messages to this process, all unused."""
        with self._lock:
            self._next_tag += count
            if self._next_tag > int(self.comm.Get_attr(self.mpi.TAG_UB)):
                raise ArenaError(
                    "This process has made so many groups over several hosts that MPI "
                    "has no tags left for another one. Create groups once and keep "
                    "them."
                )
            return self._next_tag - count

    def look(self) -> None:
        """Take messages that have come, and let groups look at what they tell."""
        self.arrivals.refresh()
        self.find_deaths()
        if self.mail.of("quit"):
            self.is_broken = True
        for message in self.mail.of("asks"):
            leaving = self.leavings.get(message["about"])
            if leaving is not None and self.may_reach(message["from"]):
                self.mail.send(message["from"], {**leaving, "late": True})
        self.watch_this_host()
        for watcher in list(self.watchers):
            watcher()

    def find_deaths(self) -> None:
        """Learn from messages and from the launcher which instances have died."""
        self.mail.take()
        for message in self.mail.of("died"):
            self.note_death(message["instance"])
        for instance in self.mail.failed - self.dead.keys():
            self.note_death(instance)
        if self.ended_file and monotonic() - self._file_read > _FILE_SECONDS:
            self._file_read = monotonic()
            with suppress(OSError), open(self.ended_file, "rb") as file:
                for line in file:
                    if line.strip().isdigit():
                        self.note_death(int(line))

    def note_death(self, instance: int) -> None:
        """Remember that an instance has died."""
        self.is_broken = True
        self.dead.setdefault(instance, monotonic())

    def note_leaving(self, instance: int, *, ends: bool) -> None:
        """Remember that an instance has left a group, as it ends or to go on."""
        if ends:
            self.going_on.discard(instance)
        else:
            self.going_on.add(instance)

    def tell_others(self, message: dict[str, Any], *, here: bool = False) -> None:
        """Send a message to all instances on other hosts, and to those of this one."""
        own = self.hosts[self.rank]
        for other, host in enumerate(self.hosts):
            is_other = other != self.rank and (here or host != own)
            if is_other and self.may_reach(other):
                self.mail.send(other, message)

    def may_reach(self, instance: int) -> bool:
        """Return whether messages may be sent to an instance."""
        self.await_news(lambda: instance in self.dead)
        return instance not in self.dead and instance not in self.lost

    def await_news(self, is_over: Callable[[], bool]) -> None:
        """Wait until it is known who has died, once another process has hung up.

        MPICH finds that its connection has, and crashes in the next call that sends
        something to that process.

        Args:
            is_over: Asked now and then whether to wait no longer.
        """
        while (hangups := self.arrivals.hangups())[0]:
            self.find_deaths()
            if is_over():
                return
            here = self.hosts[self.rank]
            deaths = sum(self.hosts[instance] != here for instance in self.dead)
            is_known = hangups[0] <= deaths - self._forgotten_deaths
            limit = _MORE_NEWS_SECONDS if is_known else _NEWS_SECONDS
            if monotonic() - hangups[1] > limit:
                self._forgotten_deaths = deaths
                self.arrivals.forget_hangups()
            sleep(0.01)

    def watch_this_host(self) -> None:
        """Tell the instances on other hosts of those that have died on this one.

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
        self, job_hosts: JobHosts, ports: Set[int]
    ) -> tuple[tuple[int, ...], tuple[str, ...], set[int]]:
        """Return the host of each instance, their names, and the ports of all."""
        own = f"{socket.gethostname()[:_NAME_BYTES]}\0{job_hosts.host}".encode()
        sent = np.zeros(2 * _NAME_BYTES + 2 * _MOST_PORTS, np.uint8)
        text = np.frombuffer(own[: 2 * _NAME_BYTES], np.uint8)
        sent[: len(text)] = text
        few = sorted(ports)[:_MOST_PORTS]
        sent[2 * _NAME_BYTES :].view(np.uint16)[: len(few)] = few
        received = np.empty((self.size, len(sent)), np.uint8)
        _wait_for(None, self.comm.Iallgather(sent, received))
        given = [bytes(row[: 2 * _NAME_BYTES]) for row in received]
        all_ports = np.ascontiguousarray(received[:, 2 * _NAME_BYTES :])
        numbers: dict[bytes, int] = {}
        hosts = tuple(numbers.setdefault(name, len(numbers)) for name in given)
        names = [name.split(b"\0")[0].decode(errors="replace") for name in given]
        return (
            job_hosts.hosts or hosts,
            tuple(names),
            set(all_ports.view(np.uint16).ravel().tolist()) - {0},
        )


def _wait_for(result: Any, request: Any) -> Any:
    """Return the result of a call of MPI that all processes make, once it is there."""
    pause = 0.0
    while not request.Test():
        threading.Event().wait(pause)
        pause = min(pause + 0.0002, 0.02)
    return result
