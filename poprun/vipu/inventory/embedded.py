"""The inventory of one user on one machine, and a server's own: a SQLite database."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from poprun.vipu import errors
from poprun.vipu.inventory import (
    acquisition,
    leases,
    machines,
    partitions,
    placement,
    users,
)
from poprun.vipu.inventory.database import Database
from poprun.vipu.inventory.interface import Inventory, operation_names
from poprun.vipu.inventory.transaction import Transaction
from poprun.vipu.leases import Lease
from poprun.vipu.liveness import Observer
from poprun.vipu.model import Cluster
from poprun.vipu.rules import presets

T = TypeVar("T")

# The refusals that may not occur again once the leases of dead holders have ended.
_TRY_AGAIN = (
    errors.InUseError,
    errors.MismatchError,
    errors.NameTakenError,
    errors.NoSpaceError,
    errors.NotActiveError,
)
_MODULES = (acquisition, leases, machines, partitions, placement, users)
# The function that performs an operation in the database has its name.
OPERATIONS: dict[str, Callable[..., Any]] = {
    name: vars(module)[name]
    for name in operation_names()
    for module in _MODULES
    if name in vars(module)
}
# All others change the database: `list_waiting` drops jobs that have ended.
_READS = {
    name
    for name in OPERATIONS
    if name.startswith(("get_", "list_", "check_")) and name != "list_waiting"
}


class EmbeddedInventory(Inventory):
    """An inventory in a file.

    Args:
        path: The database; it is made if it does not exist.
        host: This machine's name, as holders on it give it.
        timeout_s: How long to wait while other processes write.
        strict: Keep the rules of the original: see `rules`.
        syncs: Whether `close` waits for the disk: see `Database`.
        is_copy: Work on a copy, which goes with this object.
        longest_step_s: See `leases.advance_clock`. Without a server the inventory
            is looked at now and then only, by jobs that renew their leases or start.
        most_watched: The most processes to watch for their ends, if their leases are
            looked at again and again; 0 for none.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        host: str,
        timeout_s: float = 10.0,
        strict: bool = False,
        syncs: bool = True,
        is_copy: bool = False,
        longest_step_s: float = 20.0,
        most_watched: int = 0,
    ) -> None:
        self.location = os.fspath(path)
        self._strict = strict
        self._longest_step_s = longest_step_s
        self._database = Database(
            self.location, timeout_s, syncs=syncs, is_copy=is_copy
        )
        self._observer = Observer(host, most_watched)

    def _perform(self, kind: type[T], operation: str, **arguments: Any) -> T:
        shows_partitions = operation.startswith(("list_", "get_partition"))
        if shows_partitions and not self._observer.is_unchanged():
            self.end_dead_leases()
        try:
            return self._attempt(kind, operation, arguments)
        except _TRY_AGAIN:
            if self._observer.is_unchanged() or not self.end_dead_leases():
                raise
        return self._attempt(kind, operation, arguments)

    def _attempt(self, kind: type[T], operation: str, arguments: dict[str, Any]) -> T:
        with self._transaction(write=operation not in _READS) as db:
            result: T = OPERATIONS[operation](db, **arguments)
            return result

    def close(self) -> None:
        self._database.close()
        self._observer.close()

    def ensure_cluster(self, num_ipus: int, num_ilds: int = 1) -> Cluster | None:
        with self._transaction(write=False) as db:
            if not _needs_cluster(db, num_ipus, num_ilds):
                return None
        request = presets.preset(presets.pod_for(num_ipus, num_ilds), automatic=True)
        with self._transaction(write=True) as db:
            is_needed = _needs_cluster(db, num_ipus, num_ilds)
            return machines.create_cluster(db, request) if is_needed else None

    def end_dead_leases(self) -> tuple[Lease, ...]:
        self._observer.begin_look()
        # Most often there are none, and then others need not wait.
        with self._transaction(write=False) as db:
            if not leases.may_end(db):
                return ()
        with self._transaction(write=True) as db:
            return leases.end_dead(db)

    @contextmanager
    def _transaction(self, *, write: bool) -> Iterator[Transaction]:
        self._observer.refresh()
        with self._database.transaction(write=write) as connection:
            yield Transaction(
                connection=connection,
                observer=self._observer,
                strict=self._strict,
                longest_step_s=self._longest_step_s,
            )


def _needs_cluster(db: Transaction, num_ipus: int, num_ilds: int) -> bool:
    """Return whether a job needs a larger cluster than there is, and may get one."""
    return all(
        cluster.automatic and (cluster.size < num_ipus or cluster.num_ilds < num_ilds)
        for cluster in machines.list_clusters(db)
    )
