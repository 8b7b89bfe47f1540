"""The inventory of one user on one machine, and a server's own: a SQLite database."""

import os
from _sqlite3 import Connection
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from poprun.vipu import errors
from poprun.vipu.inventory.database import Database
from poprun.vipu.inventory.interface import Inventory
from poprun.vipu.inventory.tables import (
    allocations,
    clusters,
    devices,
    leases,
    partitions,
    placement,
    users,
    waiting_jobs,
)
from poprun.vipu.leases import Grant, Lease, Life, ProcessIdentity, check_process
from poprun.vipu.liveness import Observer, Watch
from poprun.vipu.model import Cluster, Partition, PartitionState
from poprun.vipu.requests import Acquisition, Turn, WaitingJob
from poprun.vipu.rules import existing, presets
from poprun.vipu.rules.numbering import Device
from poprun.vipu.rules.partition_rules import describe

T = TypeVar("T")

# What may be otherwise once the leases of dead holders have ended.
_TRY_AGAIN = (
    errors.InUseError,
    errors.MismatchError,
    errors.NameTakenError,
    errors.NoSpaceError,
    errors.NotActiveError,
)

# The operations that one function performs in the database, by how it does: it reads,
# it reads after the leases of dead holders have ended, it writes, or it writes and
# tries again once those have ended.
READ: dict[str, Callable[..., Any]] = {
    "list_clusters": clusters.list_clusters,
    "get_cluster": clusters.get_cluster,
    "list_agents": clusters.list_agents,
    "get_agent": clusters.get_agent,
    "list_allocations": allocations.list_allocations,
    "get_allocation": allocations.get_allocation,
    "list_users": users.list_users,
    "get_user": users.get_user,
    "check_access": users.check_access,
    "get_lease": leases.get_lease,
}
READ_LIVING: dict[str, Callable[..., Any]] = {
    "list_free_blocks": clusters.list_free_blocks,
    "list_leases": leases.list_leases,
    "list_reservations": devices.list_reservations,
}
WRITE: dict[str, Callable[..., Any]] = {
    "create_cluster": clusters.create_cluster,
    "create_agent": clusters.create_agent,
    "remove_agent": clusters.remove_agent,
    "set_agent_status": clusters.set_agent_status,
    "create_user": users.create_user,
    "remove_user": users.remove_user,
    "release": waiting_jobs.release,
    "detach": devices.detach,
}
CHANGE: dict[str, Callable[..., Any]] = {
    "remove_cluster": clusters.remove_cluster,
    "create_allocation": allocations.create_allocation,
    "remove_allocation": allocations.remove_allocation,
    "create_partition": placement.create_partition,
    "reset_partition": placement.reset_partition,
    "update_partition": placement.update_partition,
    "remove_partition": placement.remove_partition,
}
# Those that keep the rules of the original, or do not.
_WITH_RULES = ("create_partition", "update_partition")


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
        is_copy: bool = False,
        longest_step_s: float = 20.0,
        most_watched: int = 0,
    ) -> None:
        self.location = os.fspath(path)
        self._host = host
        self._strict = strict
        self._database = Database(
            self.location, timeout_s, syncs=syncs, is_copy=is_copy
        )
        self._longest_step_s = longest_step_s
        self._watch = Watch(host, most_watched) if most_watched else None

    def _perform(self, kind: type[T], operation: str, **arguments: Any) -> T:
        result: T
        if operation in _WITH_RULES:
            arguments["strict"] = self._strict
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

    def ensure_cluster(self, num_ipus: int, num_ilds: int = 1) -> Cluster | None:
        with self._read() as db:
            if not _needs_cluster(db, num_ipus, num_ilds):
                return None
        request = presets.preset(presets.pod_for(num_ipus, num_ilds), automatic=True)
        with self._write() as db:
            is_needed = _needs_cluster(db, num_ipus, num_ilds)
            return clusters.create_cluster(db, request) if is_needed else None

    def list_partitions(self, user: str | None = None) -> tuple[Partition, ...]:
        self._end_seen_dead()
        with self._read() as db:
            stored = partitions.list_partitions(db, user)
        return tuple(map(self._refreshed, stored))

    def get_partition(self, name: str, user: str | None = None) -> Partition:
        self._end_seen_dead()
        with self._read() as db:
            stored = partitions.get_partition(db, name, user)
        return self._refreshed(stored)

    def _refreshed(self, partition: Partition) -> Partition:
        if partition.state is not PartitionState.PENDING:
            return partition
        with self._write() as db:
            stored = partitions.find_partition(db, partition.name)
            if stored is None:  # removed in the meantime
                return partition
            return partitions.refresh(db, stored)

    def acquire(self, asked: Acquisition, user: str | None = None) -> Grant:
        grant = self._change(lambda db: self._acquire(db, asked, user))
        if self._watch is not None:
            self._watch.note(asked.holder.process, asked.holder.host)
        return grant

    def try_acquire(self, asked: Acquisition, user: str | None = None) -> Grant:
        def attempt(db: Connection) -> Grant:
            db.execute("SAVEPOINT trial")
            try:
                return self._acquire(db, asked, user)
            finally:
                db.execute("ROLLBACK TO trial")

        return self._change(attempt)

    def _acquire(self, db: Connection, asked: Acquisition, user: str | None) -> Grant:
        now = self._now(db)
        partition = _find_partition(db, asked, user)
        if waiting_jobs.is_used(db):
            waiting_jobs.drop_forgotten(db, now)
            demand = waiting_jobs.find_demand(db, asked, partition, strict=self._strict)
            waiting_jobs.check_turn(db, asked, demand, self._observer(), now)
            waiting_jobs.leave(db, asked.lease)
        lease = leases.open_lease(db, asked.holder, asked.lease_s, now, asked.lease)
        created = partition is None
        if partition is None:
            assert asked.create is not None
            own_lease = lease.id if asked.remove else None
            partition = placement.create_partition(
                db, asked.create, strict=self._strict, lease=own_lease
            )
        else:
            partition = partitions.refresh(db, partition)
            if not partition.reconfigurable:
                devices.check_unused(db, partition, "used by another job", None)
            if asked.create is not None:
                existing.prepare(partition, asked.create, update=False, reset=False)
        _check_active(partition)
        parent, children = devices.reserve(db, partition, asked, lease)
        return Grant(lease, partition, created, parent, children)

    def wait_in_queue(self, asked: Acquisition, user: str | None = None) -> Turn:
        with self._write() as db:
            now = self._now(db)
            partition = _find_partition(db, asked, user)
            demand = waiting_jobs.find_demand(db, asked, partition, strict=self._strict)
            waiting_jobs.check_size(db, asked, demand)
            waiting_jobs.enter(db, asked, demand, now)
            before = waiting_jobs.jobs_before(
                db, asked.lease, demand, self._observer(), now
            )
            parts = [waiting_jobs.describe_use(db, demand)]
            if before:
                parts.insert(0, waiting_jobs.describe_jobs_before(before))
            return Turn(is_next=not before, reason=" ".join(filter(None, parts)))

    def list_waiting(self) -> tuple[WaitingJob, ...]:
        with self._write() as db:
            waiting_jobs.drop_forgotten(db, self._now(db))
            waiting_jobs.drop_dead(db, self._observer())
            return waiting_jobs.list_waiting(db)

    def renew(self, lease: str) -> Lease:
        with self._write() as db:
            return leases.renew(db, lease, self._now(db))

    def attach(self, lease: str, child: int, process: ProcessIdentity) -> Device:
        check_process(process)
        with self._write() as db:
            _, device, holding, _, other = devices.get_child(db, lease, child)
            if other not in (None, process):
                life = self._observer().life(other, holding.holder.host)
                if life is not Life.DEAD:
                    raise errors.DeviceError(
                        f"Device {device.id} of instance {child} cannot be attached to "
                        f"by process {process.pid}, because process {other.pid} of the "
                        "same job is attached to it. Let one process of each instance "
                        "attach, and the others work through it."
                    )
            devices.attach(db, lease, child, process)
            return device

    def end_dead_leases(self) -> tuple[Lease, ...]:
        if self._watch is not None:
            self._watch.begin_look()
        # Most often there are none, and then others need not wait.
        with self._read() as db:
            if not leases.may_end(db, self._observer()):
                return ()
        with self._write() as db:
            return leases.end_dead(db, self._observer(), self._now(db))

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
        return leases.advance_clock(db, self._longest_step_s)

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
        may_end = leases.may_end(db, observer)
        return may_end and bool(leases.end_dead(db, observer, self._now(db)))


def _needs_cluster(db: Connection, num_ipus: int, num_ilds: int) -> bool:
    """Return whether a job needs a larger cluster than there is, and may get one."""
    return all(
        cluster.automatic and (cluster.size < num_ipus or cluster.num_ilds < num_ilds)
        for cluster in clusters.list_clusters(db)
    )


def _find_partition(
    db: Connection, asked: Acquisition, user: str | None
) -> Partition | None:
    """Return the partition that a job names; None if it is to be made.

    Raises:
        NameTakenError: It is to be made, but is there, and the user may not see it.
        UnknownNameError: It is not to be made, and the user sees none of this name.
    """
    if asked.create is None:
        return partitions.get_partition(db, asked.partition, user)
    partition = partitions.find_partition(db, asked.partition)
    if partition is not None and not partitions.may_see(db, partition, user):
        raise errors.NameTakenError(
            f"There is a partition {partition.name} of another user. Choose another "
            "name with --vipu-partition."
        )
    return partition


def _check_active(partition: Partition) -> None:
    """Check that a partition can be used.

    Raises:
        NotActiveError: It is in another state.
    """
    if partition.state is PartitionState.ACTIVE:
        return
    why = f": {partition.reason}" if partition.reason else ""
    # One that is made for a job is gone with this error, so nothing can reset it.
    reset = "Reset it with --reset-partition=yes, or name another"
    advice = "Name one that is ACTIVE" if partition.lease else reset
    raise errors.NotActiveError(
        f"Partition {describe(partition)} is in state {partition.state.in_api}, not "
        f"{PartitionState.ACTIVE.in_api}{why}. {advice} with --vipu-partition."
    )
