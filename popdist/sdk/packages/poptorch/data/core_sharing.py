"""Shares the cores among torch's threads and the processes that load data."""

import os
from typing import NamedTuple

import torch


class _Threads(NamedTuple):
    own: int  # how many the program has set
    left: int  # how many there are while processes load


_threads: _Threads | None = None


def leave_cores(processes: int) -> None:
    """Let torch compute with the cores that so many processes leave it.

    Threads of OpenMP wait for each other by spinning. With one core too few for them, a
    small operation takes until the kernel stops the process that has it: a step of
    training then takes many times as long as with one thread.
    """
    global _threads
    threads = torch.get_num_threads()
    if _threads is None or _threads.left != threads:  # the program has set another
        _threads = _Threads(own=threads, left=threads)
    cores = len(os.sched_getaffinity(0))
    left = max(1, min(_threads.own, cores - processes)) if processes else _threads.own
    if left != threads:
        torch.set_num_threads(left)
    _threads = _threads._replace(left=left)
