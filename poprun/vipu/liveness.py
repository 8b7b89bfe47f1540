"""Identify processes, and tell whether they live, as far as this process can see."""

import os
from functools import cache

from poprun.helpers import processes
from poprun.vipu.leases import Life, ProcessIdentity


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
    found = processes.process(number)
    if found is None:
        raise ProcessLookupError(f"There is no process {number}.")
    return ProcessIdentity(
        pid=number,
        start_time=found.start,
        boot_id=boot_id(),
        pid_namespace=_pid_namespace(),
    )


def life(process: ProcessIdentity, host: str, this_host: str) -> Life:
    """Tell whether a process lives.

    Args:
        process: Which one.
        host: Where it runs.
        this_host: Where this process runs.
    """
    if process.boot_id != boot_id():
        return Life.DEAD if host == this_host else Life.UNKNOWN
    if process.pid_namespace != _pid_namespace():
        return Life.UNKNOWN
    found = processes.process(process.pid)
    if found is not None:
        same = found.start == process.start_time and not found.zombie
        return Life.ALIVE if same else Life.DEAD
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return Life.DEAD
    except PermissionError:
        pass  # /proc hides other users' processes
    return Life.UNKNOWN


def _pid_namespace() -> str:
    # Not kept: a child in a namespace of its own would inherit it.
    return os.readlink("/proc/self/ns/pid")
