"""Detects instances that have ended in Python and wait in MPI_Finalize for the others.

mpi4py calls MPI_Finalize at the very end of the interpreter, and that waits for all
ranks. A rank that has failed waits there for ranks that wait for it: no process ends.
The interpreter itself tells what it ends with (interpreter/sitecustomize.py); this
decides when that is an event. Knows no processes.
"""

from collections.abc import Hashable
from typing import NamedTuple

from poprun.job.events import FailedInFinalize, WaitsInFinalize

FOREVER = float("inf")
# A process that fails gets so long to end by itself, with its own exit status.
END_S = 0.5
# After so long the user is told of a wait whose outcome is not known.
WARN_S = 10.0


class _Told(NamedTuple):
    rank: int
    status: int | None
    certain: bool
    at: float

    @property
    def due(self) -> float:
        return self.at + (END_S if self.certain else WARN_S)


class Finalizing:
    """What the interpreters of one job have told, until their processes end."""

    def __init__(self, num_instances: int) -> None:
        self._running = set(range(num_instances))
        self._told: dict[Hashable, _Told] = {}
        self._warned = False

    def tell(
        self, key: Hashable, rank: int, status: int | None, *, own: bool, now: float
    ) -> None:
        """Take in that a process has ended in Python.

        Args:
            key: Stands for the process.
            status: What it will end with, as waitpid gives it; None if unknown.
            own: Whether it is the instance's own program. The exit status of a process
                below that need not be the instance's.
        """
        certain = own and bool(status)
        if rank in self._running:
            self._told[key] = _Told(rank, status, certain, now)

    def forget(self, key: Hashable) -> None:
        """Take in that a process has ended."""
        self._told.pop(key, None)

    def end(self, rank: int) -> None:
        """Take in that an instance has ended."""
        self._running.discard(rank)
        self._told = {k: told for k, told in self._told.items() if told.rank != rank}

    def deadline(self) -> float:
        return min((told.due for told in self._told.values()), default=FOREVER)

    def due(self, now: float) -> list[FailedInFinalize | WaitsInFinalize]:
        """Return what has become an event by now."""
        waiting = {told.rank for told in self._told.values()}
        events: list[FailedInFinalize | WaitsInFinalize] = []
        for key, told in list(self._told.items()):
            if told.due > now:
                continue
            del self._told[key]
            if told.certain and told.status:
                at_ns = int(told.at * 1e9)
                events.append(FailedInFinalize(told.rank, told.status, at_ns))
            elif self._running - waiting and not self._warned:
                self._warned = True
                events.append(WaitsInFinalize(told.rank))
        return events
