"""Whether core-to-core traffic is fast or slow right now.

Virtual processors move between parts of a machine, and what one core has just written
then reaches another four times as slowly, until they move again.
"""

import mmap
import os
from collections.abc import Sequence
from time import perf_counter

import numpy as np

from popdist.bench.communicator import Communicator, Floats

# The bytes that one core writes and another reads. They fit in either core's caches.
PROBE_BYTES = 256 << 10
# Between the 2 GB/s of the slow mode and the 8 or more of the fast one.
_BOUND_GB_PER_S = 4.0
_READINGS = 4


class Probe:
    """One member writes memory with ordinary stores, another times its reading."""

    def __init__(self, comm: Communicator, placement: Sequence[str]) -> None:
        self._comm = comm
        self._reader = reader(placement)
        self._memory = _shared(comm) if self._reader else np.empty(0)

    def __call__(self) -> float:
        """Return the seconds that the reader took; 0 from all others."""
        if not self._reader:
            return 0.0
        # The first reading finds cold code and cold tables of pages: the least is
        # what the way between the two cores takes.
        return min(self._read_once() for _ in range(_READINGS))

    def _read_once(self) -> float:
        if self._comm.rank == 0:
            self._memory.fill(1.0)
        self._comm.barrier()
        seconds = 0.0
        if self._comm.rank == self._reader:
            began = perf_counter()
            # It reads faster than any memory can follow; a sum would not.
            self._memory.max()
            seconds = perf_counter() - began
        self._comm.barrier()
        return seconds


def reader(placement: Sequence[str]) -> int:
    """Return the first member on other CPUs than member 0; 1 if there is none.

    With more members than cores, both may run on the same core: the probe then measures
    that core's cache and reports the fast mode. 0 if there is no other member.
    """
    others = (i for i, cpus in enumerate(placement) if cpus != placement[0])
    return next(others, min(1, len(placement) - 1))


def bandwidth(seconds: Floats) -> float | None:
    """Return the median of what was probed in GB/s; None if nothing was."""
    median = float(np.median(seconds))
    return PROBE_BYTES / median / 1e9 if median else None


def mode(gb_per_s: float | None) -> str:
    """Return the mode's name; `unknown` where one member is alone."""
    if gb_per_s is None:
        return "unknown"
    return "fast" if gb_per_s >= _BOUND_GB_PER_S else "slow"


def _shared(comm: Communicator) -> Floats:
    """Return memory that all members see."""
    address = np.zeros(2)
    if comm.rank == 0:
        own = os.memfd_create("popdist.bench", os.MFD_CLOEXEC)
        os.ftruncate(own, PROBE_BYTES)
        address[:] = os.getpid(), own
    pid, number = comm.greatest(address).astype(int)
    opened = os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
    memory = mmap.mmap(opened, PROBE_BYTES)
    os.close(opened)
    comm.barrier()
    if comm.rank == 0:
        os.close(own)
    return np.frombuffer(memory, np.float64)
