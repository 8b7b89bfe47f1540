"""Give jobs their IPUs, lease, partition and devices at once, or let them wait.

First come, first served: a job that has waited longer for the same IPUs comes first, so
small jobs do not starve a large one. Jobs compete for the same partition, or if
partitions for them may be made from the same allocation.
"""

import time
from dataclasses import dataclass

from poprun.vipu import errors
from poprun.vipu.inventory import leases, machines, partitions, placement
from poprun.vipu.inventory.transaction import Transaction
from poprun.vipu.leases import Acquisition, Grant, Life, Turn, WaitingJob, check_holder
from poprun.vipu.model import Partition, PartitionState
from poprun.vipu.rules import existing, partition_rules
from poprun.words import counted

# A job that has not asked again for so long holds no others up. It keeps its place in
# the queue if it asks again.
SILENT_S = 15.0
# After so long it leaves the queue: its machine may have lost power.
FORGOTTEN_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry(WaitingJob):
    """A job that asks for IPUs, as a row of the queue."""

    # The id that its lease will have.
    lease: str
    # The allocations from which a partition may be made for it.
    allocations: tuple[str, ...]
    # When the job asked last, on the clock of the leases.
    heard: float

    def competes_with(self, other: "_Entry") -> bool:
        if self.partition or other.partition:
            return self.partition == other.partition
        return not set(self.allocations).isdisjoint(other.allocations)


def acquire(db: Transaction, request: Acquisition, user: str | None = None) -> Grant:
    """Give a job its IPUs: partition, parent device and children at once.

    Raises:
        InUseError: Others hold the IPUs; the sentence says who, since when.
        NoSpaceError: A partition had to be made, and there is no room for it.
        NotActiveError: The partition is not ACTIVE; one made for this is gone.
        MismatchError: There is such a partition, but not as it would be made.
        UnknownNameError: There is no such partition, and none is to be made.
    """
    partition = _find_partition(db, request, user)
    _take_turn(db, request, partition)
    lease = leases.open_lease(db, request)
    created = partition is None
    if partition is None:
        assert request.create is not None
        own_lease = lease.id if request.remove else None
        partition = placement.make_partition(db, request.create, own_lease)
    else:
        if not partition.reconfigurable:
            leases.check_unused(db, partition, "used by another job")
        if request.create is not None:
            existing.find_change(partition, request.create, update=False)
    _check_active(partition)
    parent, children = leases.reserve(db, partition, request, lease)
    return Grant(
        lease=lease,
        partition=partition,
        created=created,
        parent=parent,
        children=children,
    )


def try_acquire(
    db: Transaction, request: Acquisition, user: str | None = None
) -> Grant:
    """Return what `acquire` would give a job now, or raise as it would."""
    db.execute("SAVEPOINT trial")
    try:
        return acquire(db, request, user)
    finally:
        db.execute("ROLLBACK TO trial")


def wait_in_queue(
    db: Transaction, request: Acquisition, user: str | None = None
) -> Turn:
    """Let a job wait for IPUs, or go on waiting: it must ask again all the time.

    It waits until it has acquired them or its lease is released.

    Raises:
        VipuRuleError: It would wait in vain.
    """
    entry = _entry_of(db, request, _find_partition(db, request, user))
    check_holder(request.holder)
    leases.check_id(request.lease)
    # Let it wait, or go on waiting where it is.
    change = "UPDATE waiting SET partition = ?, allocations = ?, heard = ?"
    values = (entry.partition, entry.allocations, entry.heard, entry.lease)
    if not db.execute(f"{change} WHERE lease = ?", *values).rowcount:
        db.insert("waiting", entry)
    before = _jobs_before(db, entry)
    reasons = [_describe_jobs_before(before)] if before else []
    reasons.append(_describe_use(db, entry))
    return Turn(is_next=not before, reason=" ".join(filter(None, reasons)))


def list_waiting(db: Transaction) -> tuple[WaitingJob, ...]:
    """Return the jobs that wait for IPUs, the first one first."""
    _drop_forgotten(db)
    for entry in db.select(_Entry, "waiting"):
        if _has_ended(db, entry):
            _leave(db, entry.lease)
    return db.select(WaitingJob, "waiting ORDER BY rowid")


def release(db: Transaction, lease: str, wait_s: float = 0.0) -> None:
    """End a lease: its devices, its attachments, the partitions made for it.

    To end one that has ended already does nothing. `wait_s` is for how long
    instances on other hosts may still live: if the job has some, the lease ends
    after that.
    """
    if wait_s and any(db.column("SELECT spans_hosts FROM leases WHERE id = ?", lease)):
        statement = "UPDATE leases SET ends = min(ends, ?) WHERE id = ?"
        db.execute(statement, leases.advance_clock(db) + wait_s, lease)
    else:
        leases.end_lease(db, lease)
    _leave(db, lease)


def _find_partition(
    db: Transaction, request: Acquisition, user: str | None
) -> Partition | None:
    """Return the partition that a job names; None if it is to be made.

    Raises:
        NameTakenError: It is to be made, but is there, and the user may not see it.
        UnknownNameError: It is not to be made, and the user sees none of this name.
    """
    if request.create is None:
        return partitions.get_partition(db, request.partition, user)
    partition = partitions.find_partition(db, request.partition)
    if partition and not partitions.find_partition(db, request.partition, user):
        raise errors.NameTakenError(
            f"There is a partition {request.partition} of another user. Choose another "
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


def _entry_of(
    db: Transaction, request: Acquisition, partition: Partition | None
) -> _Entry:
    """Return what a job would wait for.

    Args:
        partition: The partition that it names; None if that is to be made.

    Raises:
        VipuError: It would wait in vain, as there are no such IPUs.
    """
    name, places, create = request.partition, [], request.create
    if partition is None and create is not None:
        partition_rules.check_alone(create, strict=db.strict)
        name, places = "", placement.find_places(db, create)
        most = max(machines.count_ipus(db, allocation) for allocation, _ in places)
        if most < create.size:
            raise errors.VipuRuleError(
                f"The job can never get {counted(create.size, 'IPU')}: the largest "
                f"allocation that it can use has {most}. Ask for fewer, or name "
                "another cluster or allocation."
            )
    return _Entry(
        lease=request.lease,
        holder=request.holder,
        num_ipus=request.num_children * request.ipus_per_child,
        partition=name,
        allocations=tuple(allocation for allocation, _ in places),
        since=time.time(),
        heard=leases.advance_clock(db),
    )


def _leave(db: Transaction, lease: str) -> None:
    db.execute("DELETE FROM waiting WHERE lease = ?", lease)


def _jobs_before(db: Transaction, entry: _Entry) -> list[_Entry]:
    """Return the jobs that compete for the same IPUs and have waited longer.

    Ended jobs in front leave the queue.

    Args:
        entry: The job, whether or not it waits.
    """
    before: list[_Entry] = []
    for other in db.select(_Entry, "waiting ORDER BY rowid"):
        if other.lease == entry.lease:
            break
        is_silent = other.heard <= entry.heard - SILENT_S
        if is_silent or not other.competes_with(entry):
            continue
        # One that lives holds the job up: the others need no look at their processes.
        if not before and _has_ended(db, other):
            _leave(db, other.lease)
            continue
        before.append(other)
    return before


def _take_turn(
    db: Transaction, request: Acquisition, partition: Partition | None
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
    if before := _jobs_before(db, _entry_of(db, request, partition)):
        raise errors.InUseError(
            f"{_describe_jobs_before(before)} Wait behind "
            f"{'it' if len(before) == 1 else 'them'} with --wait-for-ipus."
        )
    _leave(db, request.lease)


def _describe_jobs_before(jobs: list[_Entry]) -> str:
    """Return a sentence about the jobs that come before another."""
    first = jobs[0]
    ipus = counted(first.num_ipus, "IPU")
    if len(jobs) == 1:
        return f"A job waiting for {ipus} is ahead of it ({first.holder})."
    return (
        f"{len(jobs)} waiting jobs are ahead of it; the first of them waits for {ipus} "
        f"({first.holder})."
    )


def _describe_use(db: Transaction, entry: _Entry) -> str:
    """Return a sentence about the users of the IPUs of an entry."""
    if not entry.partition:
        return leases.describe_users_of(db, entry.allocations).strip()
    holders = leases.describe_holders(db, entry.partition)
    return f"{entry.partition} is held by {holders}." if holders else ""


def _drop_forgotten(db: Transaction) -> None:
    """Let the jobs that have long not asked again wait no longer."""
    latest = leases.advance_clock(db) - FORGOTTEN_S
    db.execute("DELETE FROM waiting WHERE heard <= ?", latest)


def _has_ended(db: Transaction, entry: _Entry) -> bool:
    return db.observer.life(entry.holder.process, entry.holder.host) is Life.DEAD
