"""Give jobs their IPUs at once, lease, partition and devices, or let them wait."""

from poprun.vipu import errors
from poprun.vipu.inventory.rows import Transaction
from poprun.vipu.inventory.tables import (
    devices,
    leases,
    partitions,
    placement,
    waiting_jobs,
)
from poprun.vipu.leases import Grant
from poprun.vipu.model import Partition, PartitionState
from poprun.vipu.requests import Acquisition, Turn
from poprun.vipu.rules import existing
from poprun.vipu.rules.partition_rules import describe


def acquire(db: Transaction, asked: Acquisition, user: str | None) -> Grant:
    partition = _find_partition(db, asked, user)
    waiting_jobs.take_turn(db, asked, partition)
    lease = leases.open_lease(db, asked.holder, asked.lease_s, asked.lease)
    created = partition is None
    if partition is None:
        assert asked.create is not None
        own_lease = lease.id if asked.remove else None
        partition = placement.create_partition(db, asked.create, own_lease)
    else:
        if not partition.reconfigurable:
            devices.check_unused(db, partition, "used by another job", None)
        if asked.create is not None:
            existing.find_change(partition, asked.create, update=False)
    _check_active(partition)
    parent, children = devices.reserve(db, partition, asked, lease)
    db.observer.note(asked.holder.process, asked.holder.host)
    return Grant(lease, partition, created, parent, children)


def try_acquire(db: Transaction, asked: Acquisition, user: str | None) -> Grant:
    db.execute("SAVEPOINT trial")
    try:
        return acquire(db, asked, user)
    finally:
        db.execute("ROLLBACK TO trial")


def wait_in_queue(db: Transaction, asked: Acquisition, user: str | None) -> Turn:
    partition = _find_partition(db, asked, user)
    demand = waiting_jobs.find_demand(db, asked, partition)
    waiting_jobs.check_size(db, asked, demand)
    waiting_jobs.enter(db, asked, demand)
    before = waiting_jobs.jobs_before(db, asked.lease, demand)
    reasons = [waiting_jobs.describe_use(db, demand)]
    if before:
        reasons.insert(0, waiting_jobs.describe_jobs_before(before))
    return Turn(is_next=not before, reason=" ".join(filter(None, reasons)))


def _find_partition(
    db: Transaction, asked: Acquisition, user: str | None
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
