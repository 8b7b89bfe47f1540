"""The inventory of one user on one machine, and a server's own: a SQLite database."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from poprun.vipu import errors
from poprun.vipu.inventory import leases, machines
from poprun.vipu.inventory.database import Database
from poprun.vipu.inventory.interface import OPERATIONS, Inventory
from poprun.vipu.inventory.transaction import Transaction
from poprun.vipu.leases import Lease
from poprun.vipu.liveness import Observer
from poprun.vipu.model import Cluster
from poprun.vipu.rules import presets


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
    ) -> None:
        self.location = os.fspath(path)
        self._database = Database(
            self.location, timeout_s, syncs=syncs, is_copy=is_copy
        )
        self._db = Transaction(
            connection=self._database.connection,
            observer=Observer(host),
            strict=strict,
            longest_step_s=longest_step_s,
        )
        # Whether operations become one transaction now, and whether the holders have
        # been looked at in it.
        self._is_together = self._has_looked = False

    @contextmanager
    def together(self) -> Iterator[None]:
        """Make one transaction of the operations of a block; one thread may do so.

        All of them were requested before. So one look for dead holders counts for the
        refusals of all, until an operation has changed something.

        Raises:
            InventoryError: No operation of the block has changed anything.
        """
        with self._database.group():
            self._is_together = True
            try:
                yield
            finally:
                self._is_together = self._has_looked = False

    def _perform(self, kind: Any, operation: str, **arguments: Any) -> Any:
        if operation == "end_dead_leases":
            return self._end_dead_leases()
        if operation.startswith(("list_", "get_partition")):
            self._end_dead_leases()
        try:
            return self._attempt(operation, arguments)
        except errors.VipuError as error:
            is_failure = isinstance(error, errors.InventoryError)
            if is_failure or not self._end_dead_leases():
                raise
        return self._attempt(operation, arguments)

    def _attempt(self, operation: str, arguments: dict[str, Any]) -> Any:
        reads = operation.startswith(("get_", "list_", "check_"))
        # To list the waiting jobs drops ended ones.
        write = not reads or operation == "list_waiting"
        with self._database.transaction(write=write):
            result = OPERATIONS[operation].body(self._db, **arguments)
        if write:
            self._has_looked = False
        return result

    def close(self) -> None:
        self._database.close()

    def ensure_cluster(self, num_ipus: int, num_ilds: int = 1) -> Cluster | None:
        with self._database.transaction(write=False):
            if not _needs_cluster(self._db, num_ipus, num_ilds):
                return None
        request = presets.preset(presets.pod_for(num_ipus, num_ilds), automatic=True)
        with self._database.transaction(write=True):
            is_needed = _needs_cluster(self._db, num_ipus, num_ilds)
            return machines.create_cluster(self._db, request) if is_needed else None

    def _end_dead_leases(self) -> tuple[Lease, ...]:
        if self._has_looked:
            return ()
        self._has_looked = self._is_together
        # Most often there are none, and then others need not wait.
        with self._database.transaction(write=False):
            if not leases.may_end(self._db):
                return ()
        with self._database.transaction(write=True):
            return leases.end_dead_leases(self._db)


def _needs_cluster(db: Transaction, num_ipus: int, num_ilds: int) -> bool:
    """Return whether a job needs a larger cluster than there is, and may get one."""
    return all(
        cluster.automatic and (cluster.size < num_ipus or cluster.num_ilds < num_ilds)
        for cluster in machines.list_clusters(db)
    )
