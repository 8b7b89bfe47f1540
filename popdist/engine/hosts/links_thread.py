"""The links of this process: their start, the thread that serves them, and their end.

They are started at the first group that has members on several hosts, and only then.
All processes of the job must come to that: each waits for all of them.
"""

import atexit
import os
import sys
import threading
from collections.abc import Set
from contextlib import suppress
from threading import Event, Lock
from time import monotonic

from popdist.engine.failures import lost_by
from popdist.engine.handle import Helper
from popdist.engine.hosts.mpi.links import connect, end_before_destructors
from popdist.engine.hosts.tcp.links import TcpLinks
from popdist.engine.hosts.world import JobHosts, World
from popdist.engine.meet.meeting import Meeting, name_instances, read_ended
from popdist.errors import ArenaError, PeerLostError, PopdistError

# How long the thread sleeps between two looks for messages. Deaths must be detected
# within a second, and an idle process must use no noticeable time of a core.
_LOOK_SECONDS = 0.1
# How long the message about the death of a lost instance may take.
_LOST_SECONDS = 0.5
# How long an ending process waits for another thread to release the links, and a
# failing process for the end of the processes that have caused its failure.
_LAST_SECONDS = 5.0
# How long a process that leaves all its groups waits for the thread of the links.
_ABANDON_SECONDS = 0.5


class _LinksThread:
    """Starts links once for this process, serves them in a thread, and ends them."""

    def __init__(self) -> None:
        self.lock = Lock()
        self._pid = os.getpid()
        self.world: World | None = None
        self._error: PopdistError | None = None
        self._begun, self._ended = Event(), Event()
        self._stop = Event()
        self._thread: threading.Thread | None = None
        # Held by the thread while it uses the links.
        self._in_use = Lock()
        # Whether they may not be used any more; whether the end of all is waited for.
        self._finalised = self._meets = False
        # The links, if they are of TCP, with the instances that they have lost; and
        # whether this process has left all groups.
        self._tcp: TcpLinks | None = None
        self.failed: dict[int, int] = {}
        self._abandoned = Event()

    def start(self, job_hosts: JobHosts, meeting: Meeting) -> World:
        """Return the world, once all processes of the job have come to this."""
        with self.lock:
            if self._thread is None:
                self._thread = Helper(
                    target=self._serve,
                    args=(job_hosts,),
                    name="popdist links",
                    daemon=True,
                )
                atexit.register(self.finish)
                self._thread.start()
        medium = _medium_of(job_hosts)
        remark = (
            f"{medium} connects the hosts, and starts only when all "
            f"{job_hosts.size} instances of the job take part: call hvd.init() in each "
            "of them, or make a group of all of them first."
        )
        deadline = meeting.deadline()
        while not self._begun.wait(0.05):
            meeting.check()
            meeting.check_file()
            absent = read_ended(meeting.ended_file)
            if absent:
                they = name_instances(sorted(absent)).capitalize()
                raise PeerLostError(
                    f"{they} ended without having started {medium}. {remark}",
                    sorted(absent),
                )
            deadline.check(lambda: f"the others to start {medium}", f" {remark}")
        if self._error is not None:
            raise self._error
        assert self.world is not None
        return self.world

    def abandon(self) -> None:
        """Send nothing any more, and start no links if that is not complete."""
        atexit.unregister(self.finish)
        self._abandoned.set()
        if self.world is not None:
            self.world.is_abandoned = True

    def end_abandoned(self) -> None:
        """Close the links, once all groups are left, without waiting for others."""
        self._stop.set()
        if self._tcp is not None:
            self._tcp.abandon()
        # It may try to connect to a host that does not answer; it ends after that.
        if self._thread is not None:
            self._thread.join(_ABANDON_SECONDS)

    def finish(self) -> None:
        """End the links with the process; without waiting for processes that died.

        They are left as they are where another process never comes here, or this one
        fails: MPI_Finalize would wait for that without end.
        """
        world = self.world
        # A forked child must leave its parent's links alone.
        if self._finalised or os.getpid() != self._pid:
            return
        if world is not None:
            self._leave(world)
        if self._thread is not None and self._thread.is_alive():
            end_before_destructors()

    def _leave(self, world: World) -> None:
        """Leave all groups, and wait until the links have ended if they can."""
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
        # Instances that go on may end at once, too, but need not.
        self._wait_for_deaths(world, lost, _LOST_SECONDS)
        self._stop.set()
        while not self._ended.wait(1.0 if world.is_broken else _LAST_SECONDS):
            if world.is_broken:
                break

    def _find_who_is_lost(self, world: World) -> None:
        """Wait a little until it is known whether lost instances live."""
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
        """Start the links, take messages until the process ends, and end the links."""
        try:
            self.world = self._connect(job_hosts)
        except PopdistError as error:
            self._error = error
        except Exception as error:
            self._error = ArenaError(
                f"Instance {job_hosts.rank} could not start "
                f"{_medium_of(job_hosts)}, by which popdist reaches other hosts: "
                f"{type(error).__name__}: {error}."
            )
        self._begun.set()
        world = self.world
        if self._tcp is not None and (world is None or self._abandoned.is_set()):
            self._tcp.abandon()
        if world is None:
            return
        while not self._stop.wait(_LOOK_SECONDS):
            with self._in_use:
                if self._finalised:
                    return
                with suppress(Exception):
                    world.look()
        with suppress(Exception):
            self._end(world)
        self._ended.set()

    def _end(self, world: World) -> None:
        if self._abandoned.is_set():
            return
        # Also where the program finalises MPI: UCX warns of messages not received.
        if world.is_broken or not self._has_met_all(world):
            world.mail.flush(0.2)
            return
        with self._in_use:
            self._finalised = True
            world.links.close()

    def _has_met_all(self, world: World) -> bool:
        """Wait for all processes and their messages; return False if one fails."""
        self._meets = True
        count_sent_here, pause = world.mail.begin_end(), 0.0005
        while (count := count_sent_here()) is None or not world.mail.has_received(
            count
        ):
            world.look()
            if world.is_broken:
                return False
            threading.Event().wait(pause)
            pause = min(2 * pause, 0.02)
        return True

    def _connect(self, job_hosts: JobHosts) -> World:
        rank, size = job_hosts.rank, job_hosts.size
        look_up = job_hosts.look_up
        root = job_hosts.tcp or (look_up() if look_up else None)
        if root is None:
            return World(job_hosts, connect(rank, size, self._stop_using))
        is_abandoned = self._abandoned.is_set
        links = TcpLinks(rank, size, root, look_up, is_abandoned, self.failed)
        self._tcp = links
        return World(job_hosts, links)

    def _stop_using(self) -> None:
        """Use the links no more in this thread: the program finalises MPI."""
        # The thread itself closes the links while it holds the lock.
        if self._finalised:
            return
        with self._in_use:
            self._finalised = True
            if self.world is not None:
                # The others wait for this process before they close theirs.
                if not self._meets:
                    self._has_met_all(self.world)
                # Groups that are closed later can tell nothing any more.
                self.world.leavers.clear()


def _medium_of(job_hosts: JobHosts) -> str:
    return "MPI" if job_hosts.uses_mpi else "TCP"


_thread = _LinksThread()


def start(job_hosts: JobHosts, meeting: Meeting) -> World:
    """Return the linked instances, once all processes of the job have come to this.

    Raises:
        ArenaError: The links cannot be started.
        PeerLostError: A process ended before it came here.
        CollectiveTimeoutError: Some have not come.
    """
    if _thread.world is not None:
        return _thread.world
    return _thread.start(job_hosts, meeting)


def started() -> World:
    """Return the linked instances; this process must have started its links."""
    assert _thread.world is not None
    return _thread.world


def unanswering() -> list[int]:
    """Return the instances that live, as far as is known, and whose hosts are silent.

    This process or instance 0 has waited for their answers.
    """
    # A copy: the thread of the links may add others meanwhile.
    failed = _thread.failed.copy()
    return [instance for instance, silence in failed.items() if silence]


def abandon() -> None:
    """Send nothing any more by these links: this process leaves all its groups.

    Other instances see the end of the connections, as if this process had died.
    """
    _thread.abandon()


def end_abandoned() -> None:
    """Close the links that abandon() has named. Others may be started afterwards."""
    global _thread
    _thread.end_abandoned()
    _thread = _LinksThread()


def note_exit() -> None:
    """Remember, for the other instances, that this process is about to end."""
    if _thread.world is not None:
        _thread.world.ends = True


def _after_fork() -> None:
    global _thread
    _thread = _LinksThread()


os.register_at_fork(after_in_child=_after_fork)
