"""MPI in this process: its start, the thread that serves it, and its end.

MPI is started at the first group that has members on several hosts, and only then. All
processes of the job must come to that: MPI_Init waits for all of them.
"""

import atexit
import ctypes
import os
import sys
import threading
from collections.abc import Set
from contextlib import suppress
from importlib import import_module
from threading import Event, Lock
from time import monotonic
from typing import Any

from popdist.engine.failures import lost_by
from popdist.engine.handle import Helper
from popdist.engine.hosts.arrivals import listening_ports
from popdist.engine.hosts.world import JobHosts, World
from popdist.engine.meet.deadlines import Deadline
from popdist.engine.meet.members import Roster, name_instances, read_ended
from popdist.errors import ArenaError, PeerLostError, PopdistError

# How long the thread sleeps between two looks for messages: what they tell of is found
# within a second, and an idle process must cost nothing that one would notice.
_LOOK_SECONDS = 0.1
# How long the news may take that an instance which a group has lost has died.
_LOST_SECONDS = 0.5
# How long to wait for another thread that is in MPI before the process ends without it,
# and for the end of a process because of which this one fails.
_LAST_SECONDS = 5.0


class _MpiThread:
    """Starts MPI once for this process, serves it in a thread, and ends it."""

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
        # Whether MPI may not be called any more; whether the end of all is waited for.
        self._finalised = self._meets = False

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
        remark = (
            "MPI connects the hosts, and starts only when all "
            f"{job_hosts.size} instances of the job take part: call hvd.init() in each "
            "of them, or make a group of all of them first."
        )
        while not self._begun.wait(0.05):
            roster.check()
            roster.check_file()
            absent = read_ended(roster.ended_file)
            if absent:
                they = name_instances(sorted(absent))
                raise PeerLostError(
                    f"{they.capitalize()} ended without having started MPI. {remark}",
                    sorted(absent),
                )
            deadline.check(lambda: "the others to start MPI", f" {remark}")
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
        if self._finalised or os.getpid() != self._pid:
            return
        if world is not None:
            self._leave(world)
        if self._thread is not None and self._thread.is_alive():
            _end_before_destructors()

    def _leave(self, world: World) -> None:
        """Leave all groups, and wait until MPI has ended if it can."""
        world.ends = True
        self._find_who_is_lost(world)
        in_call = any(asked() is not None for asked in world.callers)
        for leave in list(world.leavers):
            leave()
        error = getattr(sys, "last_value", None)
        if error is not None or world.is_broken or in_call:
            world.is_broken = True
            world.tell_others({"kind": "quit"}, here=True)
        lost = lost_by(error)
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
        # Also where the program finalises MPI: UCX warns of messages not received.
        if world.is_broken or not self._has_met_all(world):
            world.mail.flush(0.2)
        elif self._library:
            with self._in_mpi:
                self._finalised = True
                self._library.MPI_Finalize()

    def _has_met_all(self, world: World) -> bool:
        """Wait for all processes and their messages; return False if one fails."""
        self._meets = True
        (request, count), pause = world.mail.start_count(), 0.0005
        while not (request.Test() and world.mail.has_received(int(count[0]))):
            world.look()
            if world.is_broken:
                return False
            threading.Event().wait(pause)
            pause = min(2 * pause, 0.02)
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
                    if self.world is not None:
                        # The others wait for this process before they finalise MPI.
                        if not self._meets:
                            self._has_met_all(self.world)
                        # Groups that are closed later can tell nothing any more.
                        self.world.leavers.clear()

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


def _end_before_destructors() -> None:
    """Let exit() end this process before libraries tear down what they have.

    A thread that is in MPI would crash: it may wait for a process that has died.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):  # musl has none
        # Called in reverse order. _exit gets the status that the process ends with.
        libc.on_exit(libc._exit, None)
        libc.on_exit(libc.fcloseall, None)


_mpi_thread = _MpiThread()


def start(job_hosts: JobHosts, deadline: Deadline, roster: Roster) -> World:
    """Return what MPI connects, once all processes of the job have started it.

    Raises:
        ArenaError: It cannot be started, or was started otherwise by the program.
        PeerLostError: A process ended before it came here.
        CollectiveTimeoutError: Some have not come.
    """
    if _mpi_thread.world is not None:
        return _mpi_thread.world
    return _mpi_thread.start(job_hosts, deadline, roster)


def started() -> World:
    """Return what MPI connects in this process, which has started it."""
    assert _mpi_thread.world is not None
    return _mpi_thread.world


def note_exit() -> None:
    """Remember, for the other instances, that this process is about to end."""
    if _mpi_thread.world is not None:
        _mpi_thread.world.ends = True


def _after_fork() -> None:
    global _mpi_thread
    _mpi_thread = _MpiThread()


os.register_at_fork(after_in_child=_after_fork)
