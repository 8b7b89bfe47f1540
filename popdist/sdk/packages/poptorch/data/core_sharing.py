"""Shares the cores among torch's threads and the processes that load data."""

import os

import torch

from popdist.engine.tuning import cores_of_host
from popdist.errors import LauncherError
from popdist.session import STATE

# How many threads the program has set for torch, and how many this module has.
_own_threads = _set_threads = 0
# How many processes load now.
_processes = 0


def leave_cores(processes: int) -> None:
    """Leave cores to more loading processes: torch computes with the rest.

    A negative number takes back what was asked for when they have ended.

    Threads of OpenMP wait for each other by spinning. With one core too few for them, a
    small operation takes until the kernel stops the process that has it: a step of
    training then takes many times as long as with one thread.
    """
    global _processes, _own_threads, _set_threads
    _processes += processes
    threads = torch.get_num_threads()
    if threads != _set_threads:  # The program has set another number.
        _own_threads = threads
    _set_threads = _own_threads
    if _processes:
        _set_threads = max(1, min(_own_threads, _cores() - _processes))
    if threads != _set_threads:
        torch.set_num_threads(_set_threads)


def _cores() -> int:
    """Return how many cores this instance has: its share, if it is bound to none."""
    cores = len(os.sched_getaffinity(0))
    if cores < (os.cpu_count() or 1):
        return cores
    try:
        return cores_of_host() // STATE.job.place.local_size
    # Another launcher's instances need not know how many they are on this host.
    except LauncherError:
        return cores
