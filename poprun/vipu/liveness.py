"""Identify processes, and tell whether they live, as far as this process can see."""

import os
import select
import time
from functools import cache

from poprun.helpers import processes
from poprun.vipu.leases import MOST_PID, Life, ProcessIdentity

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@cache
def boot_id() -> str:
    """Return what the kernel calls this boot."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def identify(pid: int | None = None) -> ProcessIdentity:
    """Identify a process of this pid namespace; None for this one.

    Raises:
        ProcessLookupError: There is no such process.
    """
    number = os.getpid() if pid is None else pid
    status = processes.process(number)
    if status is None:
        raise ProcessLookupError(f"There is no process {number}.")
    here = Observer("")
    return ProcessIdentity(
        pid=number,
        start_time=status.start - here.shift_ticks,
        boot_id=boot_id(),
        pid_namespace=here.pid_namespace,
    )


class Observer:
    """Tells whether processes live, as this one sees them. Not for use after a fork.

    It may remember who lives, and is told of their ends by the kernel. So it costs a
    server one system call to know that no holder has ended, however many leases there
    are.

    Args:
        host: This machine's name, as holders on it give it.
        most_watched: How many processes it has a descriptor for at most; 0 to look at
            each process each time.
    """

    def __init__(self, host: str, most_watched: int = 0) -> None:
        self.host = host
        self.pid_namespace = os.readlink("/proc/self/ns/pid")
        # By how much /proc shifts start times for the time namespace of its reader.
        self.shift_ticks = int(_boot_time_shift() * _TICKS_PER_S)
        self._most_watched = most_watched
        self._poll = select.epoll() if most_watched else None
        self._descriptors: dict[ProcessIdentity, int] = {}
        self._processes: dict[int, ProcessIdentity] = {}
        self._is_complete = False

    def life(self, process: ProcessIdentity, host: str) -> Life:
        """Tell whether a process of a host lives."""
        if process in self._descriptors:
            return Life.ALIVE
        life = self._look_at(process, host)
        is_watched = life is Life.ALIVE and self._watch(process, host)
        if life is not Life.UNKNOWN and not is_watched:
            self._is_complete = False
        return life

    def begin_look(self) -> None:
        """Forget who has ended; all holders are asked for after that."""
        self.refresh()
        self._is_complete = self._poll is not None

    def is_unchanged(self) -> bool:
        """Return whether all live that lived in the last look at all, or since."""
        self.refresh()
        return self._is_complete

    def refresh(self) -> None:
        """Learn who has ended."""
        for descriptor, _ in self._poll.poll(0) if self._poll is not None else ():
            os.close(descriptor)
            del self._descriptors[self._processes.pop(descriptor)]
            self._is_complete = False

    def close(self) -> None:
        if self._poll is not None:
            self._poll.close()
        while self._processes:
            os.close(self._processes.popitem()[0])
        self._descriptors.clear()

    def _look_at(self, process: ProcessIdentity, host: str) -> Life:
        if process.boot_id != boot_id():
            return Life.DEAD if host == self.host else Life.UNKNOWN
        if process.pid_namespace != self.pid_namespace:
            return Life.UNKNOWN
        if not 0 < process.pid <= MOST_PID:
            return Life.DEAD
        status = processes.process(process.pid)
        if status is not None:
            start = status.start - self.shift_ticks
            # A namespace may be shifted by parts of a tick, of 10 ms.
            same = abs(start - process.start_time) <= 1 and not status.zombie
            return Life.ALIVE if same else Life.DEAD
        try:
            os.kill(process.pid, 0)
        except ProcessLookupError:
            return Life.DEAD
        except PermissionError:
            pass  # /proc hides other users' processes
        return Life.UNKNOWN

    def _watch(self, process: ProcessIdentity, host: str) -> bool:
        if self._poll is None or len(self._descriptors) >= self._most_watched:
            return False
        try:
            descriptor = os.pidfd_open(process.pid)
        except OSError:
            return False
        # Another may have got its number before.
        if self._look_at(process, host) is not Life.ALIVE:
            os.close(descriptor)
            return False
        self._descriptors[process] = descriptor
        self._processes[descriptor] = process
        self._poll.register(descriptor, select.EPOLLIN)
        return True


def time_since_boot() -> float:
    """Return the seconds since this boot, the same in every time namespace.

    They go on while the machine sleeps, and are never set, unlike the time of day.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME) - _boot_time_shift()


def _boot_time_shift() -> float:
    """Return by how many seconds this time namespace shifts the time since boot."""
    return _boot_time_shift_of(os.getpid())


@cache
def _boot_time_shift_of(_: int) -> float:
    # By process, because a child may be in another time namespace.
    try:
        with open("/proc/self/timens_offsets", encoding="ascii") as file:
            rows = [line.split() for line in file]
    except OSError:  # the kernel has no time namespaces
        return 0.0
    # Linux 5.6 writes the number of the clock.
    shifts = [row for row in rows if row[0] in ("boottime", str(time.CLOCK_BOOTTIME))]
    return sum(int(seconds) + int(ns) / 1e9 for _, seconds, ns in shifts)
