"""Detects instances that have ended in Python and wait in MPI_Finalize for the others.

A program of mpi4py calls MPI_Finalize when it exits, and that waits for all ranks. A
rank that has failed waits there for ranks that wait for it: no process ends. Just
before, the process reports its exit status (interpreter/sitecustomize.py); this decides
when that is an event. Knows no processes.
"""

from collections.abc import Hashable
from math import inf

from poprun.job.events import FailedInFinalize, WaitsInFinalize
from poprun.record import Record

# A process that fails gets so long to end by itself, with its own exit status.
END_S = 0.5
# After so long the user gets a warning of a wait whose outcome is not known.
WARN_S = 10.0


class _Report(Record):
    rank: int
    status: int | None
    certain: bool
    at: float

    @property
    def due(self) -> float:
        return self.at + (END_S if self.certain else WARN_S)


class Finalizing:
    """What the interpreters of one job have reported, until their processes end."""

    def __init__(self, num_instances: int) -> None:
        self._running = set(range(num_instances))
        self._reports: dict[Hashable, _Report] = {}
        self._warned = False

    def note(
        self, key: Hashable, rank: int, status: int | None, *, own: bool, now: float
    ) -> None:
        """Take in that a process has ended in Python.

        Args:
            key: Stands for the process.
            status: What it will end with, as waitpid gives it; None if unknown. One
                that succeeds may wait for the others as long as it takes.
            own: Whether it is the instance's own program. The exit status of a process
                below that need not be the instance's.
        """
        certain = own and status is not None
        if rank in self._running and status != 0:
            self._reports[key] = _Report(rank, status, certain, now)

    def forget(self, key: Hashable) -> None:
        """Take in that a process has ended."""
        self._reports.pop(key, None)

    def end(self, rank: int) -> None:
        """Take in that an instance has ended."""
        self._running.discard(rank)
        self._reports = {
            k: report for k, report in self._reports.items() if report.rank != rank
        }

    def deadline(self) -> float:
        return min((report.due for report in self._reports.values()), default=inf)

    def due(self, now: float) -> list[FailedInFinalize | WaitsInFinalize]:
        """Return what has become an event by now."""
        waiting = {report.rank for report in self._reports.values()}
        events: list[FailedInFinalize | WaitsInFinalize] = []
        for key, report in list(self._reports.items()):
            if report.due > now:
                continue
            del self._reports[key]
            if report.certain and report.status:
                at_ns = int(report.at * 1e9)
                events.append(FailedInFinalize(report.rank, report.status, at_ns))
            elif self._running - waiting and not self._warned:
                self._warned = True
                events.append(WaitsInFinalize(report.rank))
        return events
