"""Measures the instances of this host, and looks at their collectives."""

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from poprun.helpers import processes
from poprun.host.calls_in_progress import MOST_INT, read_calls
from poprun.wire.events import UsageMeasured

# How often the processes below an instance are looked up, among all of the machine.
LOOK_AGAIN_S = 5.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_KIB_PER_PAGE = os.sysconf("SC_PAGE_SIZE") // 1024


class UsageReader:
    """Measures the instances of this host, each with the processes below it."""

    def __init__(self) -> None:
        self._looked_at = -LOOK_AGAIN_S
        # By the pid of an instance's program: the processes below it.
        self._below: dict[int, list[int]] = {}

    def read(self, programs: Mapping[int, int]) -> list[UsageMeasured]:
        """Return the usage of each instance that runs.

        Args:
            programs: The rank of each program, by its pid.
        """
        now = time.monotonic()
        if now >= self._looked_at + LOOK_AGAIN_S:
            self._looked_at = now
            self._below = _descendants(programs)
        usages = []
        for program, rank in programs.items():
            if (own := _read(program)) is None:
                continue
            below = self._below.get(program, ())
            others = (_read(pid) for pid in below)
            parts = [own, *(part for part in others if part is not None)]
            cpu = sum(ticks for ticks, _ in parts) / _TICKS_PER_S
            memory = sum(pages for _, pages in parts) * _KIB_PER_PAGE
            calls = _read_calls((program, *below))
            usages.append(
                UsageMeasured(
                    rank=rank,
                    cpu_s=cpu,
                    memory_kib=memory,
                    num_processes=len(parts),
                    **calls,
                )
            )
        return usages


# Any: fields of UsageMeasured.
def _read_calls(pids: Sequence[int]) -> dict[str, Any]:
    """Return the calls of the first of some processes that is a member of groups."""
    calls = next(filter(None, map(read_calls, pids)), [])
    if not calls:
        return {}
    fields = {
        "num_groups": len(calls),
        "num_calls": sum(call.num_calls for call in calls),
        "total_bytes": sum(call.total_bytes for call in calls),
        "group_calls": tuple(
            number
            for call in calls
            if call.group
            for number in (call.group, min(call.num_calls, MOST_INT))
        ),
    }
    now = time.monotonic()
    current = [call for call in calls if call.operation]
    if not current:
        return fields
    # The one that has waited longest: a process may be in one of another thread.
    call = min(current, key=lambda c: now if c.waits_since is None else c.waits_since)
    waited = 0.0 if call.waits_since is None else max(0.0, now - call.waits_since)
    return {
        **fields,
        "operation": call.operation,
        "call_bytes": call.nbytes,
        "waited_s": waited,
        "missing": call.missing,
        "group": call.group,
        "number": call.number,
        "members": call.members if call.group else (),
    }


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
    fields = processes.read_proc(pid, "stat").rpartition(b")")[2].split()
    if not fields:  # it has ended
        return None
    # Its state is field 3 in proc(5), and the first here.
    return sum(map(int, fields[11:15])), int(fields[21])
