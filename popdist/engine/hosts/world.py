"""MPI in this process: which instances it connects, and the thread that serves it.

MPI is started at the first group that has members on several hosts, and only then. All
processes of the job must come to that: MPI_Init waits for all of them.
"""

import atexit
import ctypes
import os
import select
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Sequence, Set
from contextlib import suppress
from importlib import import_module
from threading import Event, Lock
from time import monotonic, sleep
from typing import Any, NamedTuple

import numpy as np

from popdist.engine.handle import Helper
from popdist.engine.hosts.arrivals import Arrivals, listening_ports
from popdist.engine.hosts.mail import Mail
from popdist.engine.meet.deadlines import Deadline
from popdist.engine.meet.members import Roster
from popdist.engine.meet.pidfds import Pidfd
from popdist.errors import ArenaError, PeerLostError, PopdistError

# How many bytes of a host's name are shown, and identify it.
_NAME_BYTES = 64
# Of how many ports that MPI listens on each process tells the others.
_MOST_PORTS = 16
# How long the thread sleeps between two looks for messages: what they tell of is found
# within a second, and an idle process must cost nothing that one would notice.
_LOOK_SECONDS = 0.1
# How often the launcher's file of ended instances is read.
_FILE_SECONDS = 0.2
# How long the news may take that an instance which a group has lost has died.
_LOST_SECONDS = 0.5
# For how long after processes have hung up nothing is sent: by then it is known which.
# The shorter time is for as many hangups as there are deaths known.
_NEWS_SECONDS, _MORE_NEWS_SECONDS = 3.0, 0.5
# How long to wait for another thread that is in MPI before the process ends without it,
# and for the end of a process because of which this one fails.
_LAST_SECONDS = 5.0


class JobHosts(NamedTuple):
    """Which instances of a job are on which host, as far as this one is told.

    rank: This instance.
    size: How many there are.
    host: What this host is called in this job, and no other one.
    shared_name: What the names of groups begin with here; on other hosts it may differ.
    per_host: How many each host has, in their order; empty if it is not told.
    """

    rank: int
    size: int
    host: str
    shared_name: str = ""
    per_host: tuple[int, ...] = ()

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
        # Whether this process ends, and leaves its groups for that reason.
        self.ends = False
        # To which the launcher appends the instances that have ended, on any host.
        self.ended_file = ""
        self._file_read = 0.0
        # A pidfd of each instance of this host that this one has met.
        self.pidfds: dict[int, Pidfd] = {}
        # Called every _LOOK_SECONDS in the thread beside the program.
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
                    "has no tags left for another one. Make groups once and keep them."
                )
            return self._next_tag - count

    def look(self) -> None:
        """Take messages that have come, and let groups look at what they tell."""
        self.arrivals.refresh()
        self.find_deaths()
        if self.mail.of("quit"):
            self.is_broken = True
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
        ended = {fd for fd, _ in poll.poll(0)}
        for instance, pidfd in alive.items():
            if pidfd.fileno() in ended:
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


class _Starter:
    """Starts MPI once for this process, in the thread that then serves it."""

    def __init__(self) -> None:
        self.lock = Lock()
        self._pid = os.getpid()
        self.world: World | None = None
        self._error: PopdistError | None = None
        self._begun, self._ended = Event(), Event()
        self._stop = Event()
        self._thread: threading.Thread | None = None
        self._library: Any = None
        # Held by the thread during each of its calls of MPI.
        self._in_mpi = Lock()
        self._finalised = False

    def start(self, job_hosts: JobHosts, deadline: Deadline, roster: Roster) -> World:
        """Return the world, once all processes of the job have come to this."""
        with self.lock:
            if self._thread is None:
                self._thread = Helper(
                    target=self._serve,
                    args=(job_hosts,),
                    name="popdist MPI",
                    daemon=True,
                )
                atexit.register(self.finish)
                self._thread.start()
        while not self._begun.wait(0.05):
            roster.check()
            roster.check_file()
            deadline.check(lambda: "the others to start MPI")
        if self._error is not None:
            raise self._error
        assert self.world is not None
        return self.world

    def finish(self) -> None:
        """End MPI, at the end of the process; without waiting for processes that died.

        It is left as it is where another process never comes here, or this one fails:
        MPI_Finalize would wait for that without end.
        """
        world = self.world
        # A forked child must leave its parent's MPI alone.
        if world is None or self._finalised or os.getpid() != self._pid:
            return
        world.ends = True
        self._find_who_is_lost(world)
        in_call = any(asked() is not None for asked in world.callers)
        for leave in list(world.leavers):
            leave()
        error = getattr(sys, "last_value", None)
        if error is not None or world.is_broken or in_call:
            world.is_broken = True
            world.tell_others({"kind": "quit"}, here=True)
        lost = _lost_by(error)
        self._wait_for_deaths(world, lost - world.going_on, _LAST_SECONDS)
        # Those may end at once, too, but need not.
        self._wait_for_deaths(world, lost, _LOST_SECONDS)
        self._stop.set()
        while not self._ended.wait(1.0 if world.is_broken else _LAST_SECONDS):
            if world.is_broken:
                break

    def _find_who_is_lost(self, world: World) -> None:
        """Wait a little until it is known whether those that groups have lost live."""
        self._wait_for_deaths(world, world.lost, _LOST_SECONDS)
        world.lost.clear()

    def _wait_for_deaths(
        self, world: World, instances: Set[int], seconds: float
    ) -> None:
        """Wait so long until it is known that these instances have died."""
        until = monotonic() + seconds
        world.look()
        while instances - world.dead.keys() and monotonic() < until:
            threading.Event().wait(0.01)
            world.look()

    def _serve(self, job_hosts: JobHosts) -> None:
        """Start MPI, take messages until the process ends, and end MPI."""
        try:
            self.world = self._world_of(job_hosts)
        except PopdistError as error:
            self._error = error
        except Exception as error:
            self._error = ArenaError(
                f"Instance {job_hosts.rank} could not start MPI, by which popdist "
                f"reaches other hosts: {type(error).__name__}: {error}."
            )
        self._begun.set()
        world = self.world
        if world is None:
            return
        while not self._stop.wait(_LOOK_SECONDS):
            with self._in_mpi:
                if self._finalised:
                    return
                with suppress(Exception):
                    world.look()
        with suppress(Exception):
            self._end(world)
        self._ended.set()

    def _end(self, world: World) -> None:
        if not self._library or world.is_broken:
            world.mail.flush(0.2)
            return
        # Twice: what others have sent before the first one has come by the second. UCX
        # warns of messages that were not received.
        if not all(self._has_met_all(world) for _ in range(2)):
            world.mail.flush(0.2)
            return
        with self._in_mpi:
            self._finalised = True
            self._library.MPI_Finalize()

    def _has_met_all(self, world: World) -> bool:
        """Wait until all processes have come; return False if one will not."""
        request, pause = world.comm.Ibarrier(), 0.0005
        while not request.Test():
            world.look()
            if world.is_broken:
                return False
            threading.Event().wait(pause)
            pause = min(2 * pause, 0.02)
        world.look()
        return True

    def _world_of(self, job_hosts: JobHosts) -> World:
        mpi, library, ports = _mpi_of(job_hosts)
        self._library = library
        self._stop_at_finalisation(mpi)
        rank, size = mpi.COMM_WORLD.rank, mpi.COMM_WORLD.size
        if (rank, size) != job_hosts[:2]:
            raise ArenaError(
                f"This process is instance {job_hosts.rank} of {job_hosts.size}, but "
                f"rank {rank} of {size} for MPI, by which popdist reaches other "
                "hosts. Start the program with poprun, or with the mpirun of the MPI "
                "that mpi4py uses (MPI4PY_LIBMPI names its libmpi)."
            )
        return World(job_hosts, mpi, ports)

    def _stop_at_finalisation(self, mpi: Any) -> None:
        """Let this thread call MPI no more once the program finalises it."""

        def stop(*_: object) -> None:
            # The thread itself finalises MPI while it holds the lock.
            if not self._finalised:
                with self._in_mpi:
                    self._finalised = True

        key = mpi.Comm.Create_keyval(delete_fn=stop)
        mpi.COMM_SELF.Set_attr(key, 1)


def _mpi_of(job_hosts: JobHosts) -> tuple[Any, Any, set[int]]:
    """Return mpi4py's MPI, initialised, and the library if this function has done so.

    Also return on which ports it listens, where it is one that crashes when something
    is sent to a process that has died.

    Raises:
        ArenaError: There is none, or the program has initialised it with fewer threads.
    """
    mpi = _import_mpi(job_hosts)
    library, ports = None, set[int]()
    if mpi.Is_finalized():
        raise ArenaError(
            "The program has finalised MPI, by which popdist reaches other hosts. "
            "Make popdist's collectives before that."
        )
    if not mpi.Is_initialized():
        # mpi4py's own function keeps other threads from running while MPI waits for
        # the other processes; a call by ctypes does not.
        library = ctypes.CDLL(mpi.__file__)
        provided = ctypes.c_int()
        before = listening_ports()
        library.MPI_Init_thread(None, None, mpi.THREAD_MULTIPLE, ctypes.byref(provided))
        if mpi.get_vendor()[0] == "MPICH":
            ports = listening_ports() - before
        # As mpi4py's own function does.
        for comm in (mpi.COMM_WORLD, mpi.COMM_SELF):
            comm.Set_errhandler(mpi.ERRORS_RETURN)
    if mpi.Query_thread() != mpi.THREAD_MULTIPLE:
        raise ArenaError(
            "MPI was initialised without MPI_THREAD_MULTIPLE, but popdist, which "
            "reaches other hosts by it, calls it from several threads. Leave "
            'mpi4py.rc.thread_level at "multiple", or call MPI_Init_thread with that, '
            "or call popdist.init() first; or use an MPI that was built with it."
        )
    return mpi, library, ports


def _import_mpi(job_hosts: JobHosts) -> Any:
    """Import mpi4py without initialising MPI, and without traces in its settings."""
    try:
        settings = import_module("mpi4py").rc
        before = settings.initialize, settings.finalize
        # Nor must it finalise MPI: it would wait for processes that have died.
        settings.initialize = settings.finalize = False
        try:
            return import_module("mpi4py.MPI")
        finally:
            settings.initialize, settings.finalize = before
    except (ImportError, RuntimeError) as error:
        raise ArenaError(
            f"Instance {job_hosts.rank} reaches other hosts by MPI, but mpi4py cannot "
            f"be imported: {error}. Install it on all hosts: pip install mpi4py."
        ) from error


def _wait_for(result: Any, request: Any) -> Any:
    """Return the result of a call of MPI that all processes make, once it is there."""
    pause = 0.0
    while not request.Test():
        threading.Event().wait(pause)
        pause = min(pause + 0.0002, 0.02)
    return result


def _lost_by(error: BaseException | None) -> set[int]:
    """Return the instances because of whose end an exception was raised.

    They must end first. Otherwise the launcher would take this process, which fails
    because of them, for the first failure of the job.
    """
    instances: set[int] = set()
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        seen.append(error)
        if isinstance(error, PeerLostError):
            instances |= set(error.instances)
        error = error.__cause__ or error.__context__
    return instances


_starter = _Starter()


def start(job_hosts: JobHosts, deadline: Deadline, roster: Roster) -> World:
    """Return what MPI connects, once all processes of the job have started it.

    Raises:
        ArenaError: It cannot be started, or was started otherwise by the program.
        PeerLostError: A process ended before it came here.
        CollectiveTimeoutError: Some have not come.
    """
    if _starter.world is not None:
        return _starter.world
    return _starter.start(job_hosts, deadline, roster)


def started() -> World:
    """Return what MPI connects in this process, which has started it."""
    assert _starter.world is not None
    return _starter.world


def note_exit() -> None:
    """Remember, for the other instances, that this process is about to end."""
    if _starter.world is not None:
        _starter.world.ends = True


def _after_fork() -> None:
    global _starter
    _starter = _Starter()


os.register_at_fork(after_in_child=_after_fork)


def members_on(hosts: Sequence[int], host: int) -> Iterable[int]:
    """Return which members are on this host."""
    return (rank for rank, other in enumerate(hosts) if other == host)
