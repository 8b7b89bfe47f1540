"""The part of an embedded inventory that gives IPUs to jobs and processes."""

from poprun.vipu.errors import DeviceError, NameTakenError, NotActiveError
from poprun.vipu.inventory.sqlite import Connection
from poprun.vipu.inventory.store import Store
from poprun.vipu.inventory.tables import (
    creation,
    device_store,
    lease_store,
    partition_store,
    queue_store,
)
from poprun.vipu.leases import (
    Grant,
    Lease,
    Life,
    ProcessIdentity,
    check_process,
)
from poprun.vipu.model import Partition, PartitionState
from poprun.vipu.requests import Acquisition, Turn, WaitingJob
from poprun.vipu.rules import existing
from poprun.vipu.rules.numbering import Device
from poprun.vipu.rules.partition_rules import describe


class StoredDevices(Store):
    """Leases and devices."""

    def acquire(self, asked: Acquisition, user: str | None = None) -> Grant:
        grant = self._change(lambda db: self._acquire(db, asked, user))
        if self._watch is not None:
            self._watch.note(asked.holder.process, asked.holder.host)
        return grant

    def wait_in_queue(self, asked: Acquisition, user: str | None = None) -> Turn:
        with self._write() as db:
            now = self._now(db)
            partition = _find_partition(db, asked, user)
            demand = queue_store.find_demand(db, asked, partition, strict=self._strict)
            queue_store.check_size(db, asked, demand)
            queue_store.enter(db, asked, demand, now)
            before = queue_store.jobs_before(
                db, asked.lease, demand, self._observer(), now
            )
            parts = [queue_store.describe_use(db, demand)]
            if before:
                parts.insert(0, queue_store.describe_jobs_before(before))
            return Turn(is_next=not before, reason=" ".join(filter(None, parts)))

    def list_waiting(self) -> tuple[WaitingJob, ...]:
        with self._write() as db:
            queue_store.drop_forgotten(db, self._now(db))
            queue_store.drop_dead(db, self._observer())
            return queue_store.list_waiting(db)

    def renew(self, lease: str) -> Lease:
        with self._write() as db:
            return lease_store.renew(db, lease, self._now(db))

    def release(self, lease: str) -> None:
        with self._write() as db:
            lease_store.end_lease(db, lease)
            queue_store.leave(db, lease)

    def attach(self, lease: str, child: int, process: ProcessIdentity) -> Device:
        check_process(process)
        with self._write() as db:
            holder = lease_store.get_lease(db, lease).holder
            device, other = device_store.attach(db, lease, child, process)
            if other is None:
                return device
            if self._observer().life(other, holder.host) is Life.DEAD:
                device_store.take_over(db, lease, child, process)
                return device
        raise DeviceError(
            f"Device {device.id} of instance {child} cannot be attached to by process "
            f"{process.pid}, because process {other.pid} of the same job is "
            "attached to "
            "it. Let one process of each instance attach, and the others work through "
            "it."
        )

    def _acquire(self, db: Connection, asked: Acquisition, user: str | None) -> Grant:
        now = self._now(db)
        partition = _find_partition(db, asked, user)
        if queue_store.is_used(db):
            queue_store.drop_forgotten(db, now)
            demand = queue_store.find_demand(db, asked, partition, strict=self._strict)
            queue_store.check_turn(db, asked, demand, self._observer(), now)
            queue_store.leave(db, asked.lease)
        lease = lease_store.open_lease(
            db, asked.holder, asked.lease_s, now, asked.lease
        )
        created = partition is None
        if partition is None:
            assert asked.create is not None
            partition = creation.create_partition(
                db,
                asked.create,
                strict=self._strict,
                lease=lease.id if asked.remove else None,
            )
        else:
            partition = partition_store.refresh(db, partition)
            if not partition.reconfigurable:
                device_store.check_unused(db, partition, "used by another job", None)
            if asked.create is not None:
                existing.prepare(partition, asked.create, update=False, reset=False)
        check_active(partition)
        parent, children = device_store.reserve(db, partition, asked, lease)
        return Grant(
            lease=lease,
            partition=partition,
            created=created,
            parent=parent,
            children=children,
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
        return partition_store.get_partition(db, asked.partition, user)
    found = partition_store.find_partition(db, asked.partition)
    if found is not None and not partition_store.may_see(db, found, user):
        raise NameTakenError(
            f"There is a partition {found.name} of another user. Choose another name "
            "with --vipu-partition."
        )
    return found


def check_active(partition: Partition) -> None:
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
    raise NotActiveError(
        f"Partition {describe(partition)} is in state {partition.state.in_api}, not "
        f"{PartitionState.ACTIVE.in_api}{why}. {advice} with --vipu-partition."
    )
