"""What the processes of the instances of this host use: CPU time and memory."""

import os
import time
from collections.abc import Mapping

from poprun.helpers import processes

# Which processes belong to an instance is looked up so often, as it takes a look at all
# processes of the machine.
LOOK_AGAIN_S = 5.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_KIB_PER_PAGE = os.sysconf("SC_PAGE_SIZE") // 1024

# CPU time in seconds, resident memory in KiB, number of processes.
Usage = tuple[float, int, int]


class UsageReader:
    """Measures the instances of this host, each with the processes below it."""

    def __init__(self) -> None:
        self._looked_at = -LOOK_AGAIN_S
        # By the pid of an instance's program: the processes below it.
        self._below: dict[int, list[int]] = {}

    def read(self, programs: Mapping[int, int]) -> dict[int, Usage]:
        """Return the usage of each instance that runs, by its rank.

        Args:
            programs: The rank of each program, by its pid.
        """
        now = time.monotonic()
        if now >= self._looked_at + LOOK_AGAIN_S:
            self._looked_at = now
            self._below = _descendants(programs)
        usages = {}
        for program, rank in programs.items():
            if (own := _read(program)) is None:
                continue
            below = (_read(pid) for pid in self._below.get(program, ()))
            parts = [own, *(part for part in below if part is not None)]
            cpu = sum(ticks for ticks, _ in parts) / _TICKS_PER_S
            memory = sum(pages for _, pages in parts) * _KIB_PER_PAGE
            usages[rank] = cpu, memory, len(parts)
        return usages


def _descendants(programs: Mapping[int, int]) -> dict[int, list[int]]:
    """Return the pids below each program."""
    children: dict[int, list[int]] = {}
    for p in processes.processes().values():
        children.setdefault(p.parent, []).append(p.pid)
    below = {}
    for program in programs:
        pids, queue = [], [program]
        while queue:
            pids += (new := children.get(queue.pop(), []))
            queue += new
        below[program] = pids
    return below


def _read(pid: int) -> tuple[int, int] | None:
    """Return the CPU time in ticks, of reaped children too, and the pages in memory."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:  # it has ended
        return None
    # Its state is field 3 in proc(5), and the first here.
    return sum(map(int, fields[11:15])), int(fields[21])
