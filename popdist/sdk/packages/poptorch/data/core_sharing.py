"""Shares the cores among torch's threads and the processes that load data."""

import os
from typing import NamedTuple

import torch


class _Threads(NamedTuple):
    own: int  # how many the program has set
    left: int  # how many there are while processes load


_threads: _Threads | None = None
_processes = 0  # that load now


def leave_cores(processes: int) -> None:
    """Let torch compute with the cores that so many more processes that load leave it.

    A negative number takes back what was asked for when they have ended.

    Threads of OpenMP wait for each other by spinning. With one core too few for them, a
    small operation takes until the kernel stops the process that has it: a step of
    training then takes many times as long as with one thread.
    """
    global _processes, _threads
    _processes += processes
    threads = torch.get_num_threads()
    if _threads is None or _threads.left != threads:  # the program has set another
        _threads = _Threads(own=threads, left=threads)
    left = _threads.own
    if _processes:
        left = max(1, min(left, len(os.sched_getaffinity(0)) - _processes))
    if left != threads:
        torch.set_num_threads(left)
    _threads = _threads._replace(left=left)
