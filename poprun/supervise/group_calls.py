"""Finds the instances that have not begun a call of torch's gloo. Pure but for a clock.

Each host counts the calls of its own instances, and poprun compares the counts. In
popdist's groups the instances compare them.
"""

import time
from collections.abc import Callable
from dataclasses import replace

from popdist import call_records as records
from poprun.wire.events import UsageMeasured

BACKWARD = records.TORCH_BACKWARD.decode()
# A backward pass that uses less of a CPU than this waits, and does not compute.
IDLE_CPU = 0.1
# The kernel counts CPU time in hundredths of a second.
LEAST_TIME_S = 0.5


class GroupCalls:
    """How far all instances of a job are in their groups.

    Args:
        clock: Returns the time of a measurement that comes.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # By group and instance: how many calls it has begun.
        self._begun: dict[int, dict[int, int]] = {}
        # By instance: when it was last measured and its CPU time then, and the part of
        # a CPU that it has used since the time before.
        self._measured: dict[int, tuple[float, float]] = {}
        self._cpu: dict[int, float] = {}

    def note(self, usage: UsageMeasured) -> None:
        """Take in a measurement."""
        now = self._clock()
        numbers = iter(usage.group_calls)
        for group, begun in zip(numbers, numbers, strict=False):
            self._begun.setdefault(group, {})[usage.rank] = begun
        before, cpu_s = self._measured.get(usage.rank, (now, usage.cpu_s))
        if now - before >= LEAST_TIME_S:
            self._cpu[usage.rank] = (usage.cpu_s - cpu_s) / (now - before)
        elif usage.rank in self._measured:
            return
        self._measured[usage.rank] = now, usage.cpu_s

    def complete(self, usage: UsageMeasured) -> UsageMeasured:
        """Return a measurement with the instances that have not begun its call.

        An instance waits only if there are any.
        """
        if not usage.group:
            return usage
        begun = self._begun.get(usage.group, {})
        missing = tuple(r for r in usage.members if begun.get(r, 0) < usage.number)
        computes = self._cpu.get(usage.rank, 1.0) >= IDLE_CPU
        if not missing or (usage.operation == BACKWARD and computes):
            return replace(usage, missing=missing, waited_s=0.0)
        return replace(usage, missing=missing)
