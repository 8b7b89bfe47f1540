"""Give jobs their IPUs, lease, partition and devices at once, or let them wait.

First come, first served: no job gets IPUs that a job which has waited longer competes
for, so small jobs do not starve a large one. Jobs compete for the same partition, or if
partitions for them may be made from the same allocation.
"""

import time
from dataclasses import asdict, dataclass

from poprun.vipu import errors
from poprun.vipu.inventory.rows import Transaction
from poprun.vipu.inventory.tables import leases, machines, partitions, placement
from poprun.vipu.leases import Grant, Life, check_holder
from poprun.vipu.model import Partition, PartitionState
from poprun.vipu.requests import Acquisition, Turn, WaitingJob
from poprun.vipu.rules import existing, partition_rules
from poprun.words import counted

# A job that has not asked again for so long holds no others up. It keeps its place in
# the queue if it asks again.
SILENT_S = 15.0
# After so long it leaves the queue: its machine may have lost power.
FORGOTTEN_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Demand:
    """Which IPUs of an inventory a job waits for."""

    # Empty if a partition is to be made.
    partition: str
    # The names of those that it may be made from, and spaces.
    allocations: str

    def competes_with(self, other: "_Demand") -> bool:
        if self.partition or other.partition:
            return self.partition == other.partition
        return not set(self.allocations.split()).isdisjoint(other.allocations.split())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """A row of the queue."""

    job: WaitingJob
    lease: str
    allocations: str
    # When the job asked last, on the clock of the leases.
    heard: float

    @property
    def demand(self) -> _Demand:
        return _Demand(partition=self.job.partition, allocations=self.allocations)


def acquire(db: Transaction, asked: Acquisition, user: str | None) -> Grant:
    partition = _find_partition(db, asked, user)
    _take_turn(db, asked, partition)
    lease = leases.open_lease(db, asked)
    created = partition is None
    if partition is None:
        assert asked.create is not None
        own_lease = lease.id if asked.remove else None
        partition = placement.create_partition(db, asked.create, own_lease)
    else:
        if not partition.reconfigurable:
            leases.check_unused(db, partition, "used by another job", None)
        if asked.create is not None:
            existing.find_change(partition, asked.create, update=False)
    _check_active(partition)
    parent, children = leases.reserve(db, partition, asked, lease)
    # From now on the observer knows of this holder, whose end it may be told of.
    db.observer.life(asked.holder.process, asked.holder.host)
    return Grant(
        lease=lease,
        partition=partition,
        created=created,
        parent=parent,
        children=children,
    )


def try_acquire(db: Transaction, asked: Acquisition, user: str | None) -> Grant:
    db.execute("SAVEPOINT trial")
    try:
        return acquire(db, asked, user)
    finally:
        db.execute("ROLLBACK TO trial")


def wait_in_queue(db: Transaction, asked: Acquisition, user: str | None) -> Turn:
    partition = _find_partition(db, asked, user)
    demand = _find_demand(db, asked, partition)
    _check_size(db, asked, demand)
    _enter(db, asked, demand)
    before = _jobs_before(db, asked.lease, demand)
    reasons = [_describe_use(db, demand)]
    if before:
        reasons.insert(0, _describe_jobs_before(before))
    return Turn(is_next=not before, reason=" ".join(filter(None, reasons)))


def list_waiting(db: Transaction) -> tuple[WaitingJob, ...]:
    _drop_forgotten(db)
    for entry in db.select(_Entry, "waiting"):
        if _has_ended(db, entry.job):
            db.delete("waiting", lease=entry.lease)
    return db.select(WaitingJob, "waiting ORDER BY rowid")


def release(db: Transaction, lease: str, wait_s: float) -> None:
    """End the lease of a job that has IPUs or waits for them."""
    if wait_s and leases.spans_hosts(db, lease):
        leases.end_after(db, lease, wait_s)
    else:
        leases.end_lease(db, lease)
    db.delete("waiting", lease=lease)


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
    reason = f": {partition.reason}" if partition.reason else ""
    # One that is made for a job is gone with this error, so nothing can reset it.
    reset = "Reset it with --reset-partition=yes, or name another"
    advice = "Name one that is ACTIVE" if partition.lease else reset
    state, active = partition.state.in_api, PartitionState.ACTIVE.in_api
    raise errors.NotActiveError(
        f"Partition {partition_rules.describe(partition)} is in state {state}, not "
        f"{active}{reason}. {advice} with --vipu-partition."
    )


def _find_demand(
    db: Transaction, acquisition: Acquisition, partition: Partition | None
) -> _Demand:
    """Return what a job waits for.

    Args:
        partition: The partition that it names; None if that is to be made.

    Raises:
        VipuError: There are no such IPUs.
    """
    if partition is not None or acquisition.create is None:
        return _Demand(partition=acquisition.partition, allocations="")
    partition_rules.check_alone(acquisition.create, strict=db.strict)
    places = placement.find_places(db, acquisition.create)
    return _Demand(partition="", allocations=" ".join(name for name, _ in places))


def _check_size(db: Transaction, acquisition: Acquisition, demand: _Demand) -> None:
    """Check that there are as many IPUs as a job waits for.

    Raises:
        VipuRuleError: It would wait in vain.
    """
    if demand.partition or acquisition.create is None:
        return
    size = acquisition.create.size
    sizes = [machines.count_ipus(db, name) for name in demand.allocations.split()]
    most = max(sizes, default=0)
    if most < size:
        raise errors.VipuRuleError(
            f"The job can never get {counted(size, 'IPU')}: the largest allocation "
            f"that it can use has {most}. Ask for fewer, or name another cluster or "
            "allocation."
        )


def _enter(db: Transaction, acquisition: Acquisition, demand: _Demand) -> None:
    """Let a job wait, or go on waiting where it is."""
    check_holder(acquisition.holder)
    if len(acquisition.lease) != 32:
        raise errors.VipuRuleError("A job that waits draws the id of its lease before.")
    now = leases.advance_clock(db)
    lease = acquisition.lease
    if db.column("SELECT 1 FROM waiting WHERE lease = ?", lease):
        db.update("waiting", {**asdict(demand), "heard": now}, lease=lease)
    else:
        num_ipus = acquisition.num_children * acquisition.ipus_per_child
        job = WaitingJob(
            holder=acquisition.holder,
            num_ipus=num_ipus,
            partition=demand.partition,
            since=time.time(),
        )
        db.insert(
            "waiting",
            _Entry(job=job, lease=lease, allocations=demand.allocations, heard=now),
        )


def _jobs_before(db: Transaction, lease: str, demand: _Demand) -> list[WaitingJob]:
    """Return the jobs that compete for the same IPUs and have waited longer.

    Those in front that have ended leave the queue.

    Args:
        lease: The id of the lease of a job, whether or not it waits.
        demand: Which IPUs the job waits for.
    """
    now = leases.advance_clock(db)
    before: list[WaitingJob] = []
    for entry in db.select(_Entry, "waiting ORDER BY rowid"):
        if entry.lease == lease:
            break
        if entry.heard <= now - SILENT_S or not entry.demand.competes_with(demand):
            continue
        # One that lives holds the job up: the others need no look at their processes.
        if not before and _has_ended(db, entry.job):
            db.delete("waiting", lease=entry.lease)
            continue
        before.append(entry.job)
    return before


def _take_turn(
    db: Transaction, acquisition: Acquisition, partition: Partition | None
) -> None:
    """Let a job that gets its IPUs now wait no longer.

    Args:
        partition: The partition that it names; None if that is to be made.

    Raises:
        InUseError: A job that waits comes before it.
    """
    if not db.column("SELECT 1 FROM waiting LIMIT 1"):
        return  # most often no job waits
    _drop_forgotten(db)
    demand = _find_demand(db, acquisition, partition)
    if before := _jobs_before(db, acquisition.lease, demand):
        raise errors.InUseError(
            f"{_describe_jobs_before(before)} Wait behind "
            f"{'it' if len(before) == 1 else 'them'} with --wait-for-ipus."
        )
    db.delete("waiting", lease=acquisition.lease)


def _describe_jobs_before(jobs: list[WaitingJob]) -> str:
    """Return a sentence about the jobs that come before another."""
    first = jobs[0]
    ipus = counted(first.num_ipus, "IPU")
    if len(jobs) == 1:
        return f"A job waiting for {ipus} is ahead of it ({first.holder})."
    return (
        f"{len(jobs)} waiting jobs are ahead of it; the first of them waits for {ipus} "
        f"({first.holder})."
    )


def _describe_use(db: Transaction, demand: _Demand) -> str:
    """Return a sentence about who uses the IPUs that a job waits for."""
    if not demand.partition:
        return leases.describe_users_of(db, demand.allocations.split()).strip()
    holders = leases.describe_holders(db, demand.partition)
    return f"{demand.partition} is held by {holders}." if holders else ""


def _drop_forgotten(db: Transaction) -> None:
    """Let the jobs that have long not asked again wait no longer."""
    latest = leases.advance_clock(db) - FORGOTTEN_S
    db.execute("DELETE FROM waiting WHERE heard <= ?", latest)


def _has_ended(db: Transaction, job: WaitingJob) -> bool:
    return db.observer.life(job.holder.process, job.holder.host) is Life.DEAD
