"""Detects instances that have ended in Python and wait in MPI_Finalize for the others.

A program of mpi4py calls MPI_Finalize when it exits, and that waits for all ranks. A
failed rank and the other ranks then wait for each other: no process ends. Just
before, the process reports its exit status (interpreter/sitecustomize.py); this decides
when that is an event. Knows no processes.
"""

from collections.abc import Hashable
from math import inf

from poprun.wire.events import FailedInFinalize, WaitsInFinalize

# A process that fails gets so long to end by itself, with its own exit status.
END_S = 0.5
# After so long the user is warned of a wait with an unknown outcome.
WARN_S = 10.0


class Finalizing:
    """The reports of the interpreters of one job, until their processes end."""

    def __init__(self, num_instances: int) -> None:
        self._running = set(range(num_instances))
        # By process, unless that ends: when its report is an event, and which.
        self._pending: dict[
            Hashable, tuple[float, FailedInFinalize | WaitsInFinalize]
        ] = {}
        self._has_warned = False

    def note(
        self, key: Hashable, rank: int, status: int | None, *, own: bool, now: float
    ) -> None:
        """Take in that a process has ended in Python.

        Args:
            key: Stands for the process.
            status: Its future exit status, as waitpid gives it; None if unknown. A
                process that succeeds may wait for the others as long as it takes.
            own: Whether it is the instance's own program. The exit status of a process
                below that need not be the instance's.
        """
        if rank not in self._running or status == 0:
            return
        if own and status is not None:
            failure = FailedInFinalize(rank=rank, status=status, at_ns=int(now * 1e9))
            self._pending[key] = now + END_S, failure
        else:
            self._pending[key] = now + WARN_S, WaitsInFinalize(rank=rank)

    def forget(self, key: Hashable) -> None:
        """Take in that a process has ended."""
        self._pending.pop(key, None)

    def end(self, rank: int) -> None:
        """Take in that an instance has ended."""
        self._running.discard(rank)
        for key, (_, event) in list(self._pending.items()):
            if event.rank == rank:
                del self._pending[key]

    def deadline(self) -> float:
        return min((due for due, _ in self._pending.values()), default=inf)

    def due(self, now: float) -> list[FailedInFinalize | WaitsInFinalize]:
        """Return the reports that are events by now."""
        waiting = {event.rank for _, event in self._pending.values()}
        events: list[FailedInFinalize | WaitsInFinalize] = []
        for key, (due, event) in list(self._pending.items()):
            if due > now:
                continue
            del self._pending[key]
            if isinstance(event, FailedInFinalize):
                events.append(event)
            elif self._running - waiting and not self._has_warned:
                self._has_warned = True
                events.append(event)
        return events
