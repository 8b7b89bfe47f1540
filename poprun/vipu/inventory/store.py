"""What the parts of an embedded inventory share: the database, and evictions."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from poprun.vipu.errors import (
    InUseError,
    MismatchError,
    NameTakenError,
    NoSpaceError,
    NotActiveError,
)
from poprun.vipu.inventory.database import Database
from poprun.vipu.inventory.interface import Inventory
from poprun.vipu.inventory.sqlite import Connection
from poprun.vipu.inventory.tables import (
    allocation_store,
    cluster_store,
    device_store,
    lease_store,
    user_store,
)
from poprun.vipu.leases import Lease
from poprun.vipu.liveness import Observer, Watch

T = TypeVar("T")

# What may be otherwise once the leases of dead holders have ended.
_TRY_AGAIN = (
    InUseError,
    MismatchError,
    NameTakenError,
    NoSpaceError,
    NotActiveError,
)


# The operations that one function performs in the database, by how it does: it reads,
# it reads after the leases of dead holders have ended, it writes, or it writes and
# tries again once those have ended.
READ: dict[str, Callable[..., Any]] = {
    "list_clusters": cluster_store.list_clusters,
    "get_cluster": cluster_store.get_cluster,
    "list_agents": cluster_store.list_agents,
    "get_agent": cluster_store.get_agent,
    "list_allocations": allocation_store.list_allocations,
    "get_allocation": allocation_store.get_allocation,
    "list_users": user_store.list_users,
    "get_user": user_store.get_user,
    "check_access": user_store.check_access,
    "get_lease": lease_store.get_lease,
}
READ_LIVING: dict[str, Callable[..., Any]] = {
    "list_free_blocks": cluster_store.list_free_blocks,
    "list_leases": lease_store.list_leases,
    "list_reservations": device_store.list_reservations,
}
WRITE: dict[str, Callable[..., Any]] = {
    "create_cluster": cluster_store.create_cluster,
    "create_agent": cluster_store.create_agent,
    "remove_agent": cluster_store.remove_agent,
    "set_agent_status": cluster_store.set_agent_status,
    "create_user": user_store.create_user,
    "remove_user": user_store.remove_user,
    "detach": device_store.detach,
}
CHANGE: dict[str, Callable[..., Any]] = {
    "remove_cluster": cluster_store.remove_cluster,
    "create_allocation": allocation_store.create_allocation,
    "remove_allocation": allocation_store.remove_allocation,
}


class Store(Inventory):
    """An open inventory.

    Args:
        path: The database; it is made if it does not exist.
        host: This machine's name, as holders on it give it.
        timeout_s: How long to wait while other processes write.
        strict: Keep the rules of the original: see `rules`.
        syncs: Whether `close` waits for the disk: see `Database`.
        longest_step_s: See `lease_store.advance_clock`. Without a server the inventory
            is looked at now and then only, by jobs that renew their leases or start.
        most_watched: Of how many processes the end is waited for, if their leases are
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
        longest_step_s: float = 20.0,
        most_watched: int = 0,
    ) -> None:
        self.location = os.fspath(path)
        self._host = host
        self._strict = strict
        self._database = Database(self.location, timeout_s, syncs=syncs)
        self._longest_step_s = longest_step_s
        self._watch = Watch(host, most_watched) if most_watched else None

    def _perform(self, kind: type[T], operation: str, **arguments: Any) -> T:
        result: T
        if operation in CHANGE:
            result = self._change(lambda db: CHANGE[operation](db, **arguments))
        elif operation in WRITE:
            with self._write() as db:
                result = WRITE[operation](db, **arguments)
        else:
            if operation in READ_LIVING:
                self._end_seen_dead()
            read = READ.get(operation) or READ_LIVING[operation]
            with self._read() as db:
                result = read(db, **arguments)
        return result

    def close(self) -> None:
        self._database.close()
        if self._watch is not None:
            self._watch.close()

    def end_dead_leases(self) -> tuple[Lease, ...]:
        if self._watch is not None:
            self._watch.begin_look()
        # Most often there are none, and then others need not wait.
        with self._read() as db:
            if not lease_store.may_end(db, self._observer()):
                return ()
        with self._write() as db:
            return lease_store.end_dead(db, self._observer(), self._now(db))

    def _end_seen_dead(self) -> None:
        """End dead leases before a list; a server that sees no change has none."""
        if self._watch is None or not self._watch.is_unchanged():
            self.end_dead_leases()

    def _observer(self) -> Observer:
        if self._watch is None:
            return Observer(self._host)
        self._watch.refresh()
        return self._watch

    def _now(self, db: Connection) -> float:
        """Return what the clock of the leases shows."""
        return lease_store.advance_clock(db, self._longest_step_s)

    def _read(self) -> AbstractContextManager[Connection]:
        return self._database.transaction(write=False)

    def _write(self) -> AbstractContextManager[Connection]:
        return self._database.transaction(write=True)

    def _change(self, action: Callable[[Connection], T]) -> T:
        """Run an action as a transaction; again, if dead holders were in its way."""
        with self._write() as db:
            db.execute("SAVEPOINT attempt")
            try:
                return action(db)
            except _TRY_AGAIN as error:
                db.execute("ROLLBACK TO attempt")
                refusal = error
            if not self._end_dead(db):
                raise refusal
        with self._write() as db:
            return action(db)

    def _end_dead(self, db: Connection) -> bool:
        """End dead leases in a transaction; return whether there were any."""
        if self._watch is not None:
            if self._watch.is_unchanged():
                return False
            self._watch.begin_look()
        observer = self._observer()
        may_end = lease_store.may_end(db, observer)
        return may_end and bool(lease_store.end_dead(db, observer, self._now(db)))
