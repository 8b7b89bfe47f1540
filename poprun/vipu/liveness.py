"""Identify processes, and tell whether they live, as far as this process can see."""

import os
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

    Args:
        host: This machine's name, as holders on it give it.
    """

    def __init__(self, host: str) -> None:
        self.host = host
        self.pid_namespace = os.readlink("/proc/self/ns/pid")
        # By how much /proc shifts start times for the time namespace of its reader.
        self.shift_ticks = int(_boot_time_shift() * _TICKS_PER_S)

    def life(self, process: ProcessIdentity, host: str) -> Life:
        """Tell whether a process of a host lives."""
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


def time_since_boot() -> float:
    """Return the seconds since this boot, the same in every time namespace.

    They go on while the machine sleeps, and are never set, unlike the time of day.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME) - _boot_time_shift()


@cache
def _boot_time_shift() -> float:
    """Return by how many seconds this time namespace shifts the time since boot."""
    try:
        with open("/proc/self/timens_offsets", encoding="ascii") as file:
            rows = [line.split() for line in file]
    except OSError:  # the kernel has no time namespaces
        return 0.0
    # Linux 5.6 writes the number of the clock.
    shifts = [row for row in rows if row[0] in ("boottime", str(time.CLOCK_BOOTTIME))]
    return sum(int(seconds) + int(ns) / 1e9 for _, seconds, ns in shifts)


# A child may be in another time namespace.
os.register_at_fork(after_in_child=_boot_time_shift.cache_clear)
