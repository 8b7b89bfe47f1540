"""Jobs that wait for IPUs, in the database: who comes before whom.

First come, first served: no job gets IPUs that a job which has waited longer competes
for, so small jobs do not starve a large one. Jobs compete for the same partition, or if
partitions for them may be made from the same allocation.
"""

import time
from typing import NamedTuple

from poprun.vipu.errors import InUseError, VipuRuleError
from poprun.vipu.inventory.rows import Transaction
from poprun.vipu.inventory.tables.allocations import count_ipus
from poprun.vipu.inventory.tables.leases import (
    advance_clock,
    describe_holders,
    describe_users_of,
    end_lease,
)
from poprun.vipu.inventory.tables.placement import find_places
from poprun.vipu.leases import Life, check_holder
from poprun.vipu.model import Partition
from poprun.vipu.requests import Acquisition, WaitingJob
from poprun.vipu.rules.partition_rules import check_alone
from poprun.words import counted

# A job that has not asked again for so long holds no others up. It keeps its place in
# the queue if it asks again.
SILENT_S = 15.0
# After so long it leaves the queue: its machine may have lost power.
FORGOTTEN_S = 3600.0


class Demand(NamedTuple):
    """Which IPUs of an inventory a job waits for."""

    # Empty if a partition is to be made.
    partition: str
    allocations: tuple[str, ...]

    def competes_with(self, other: "Demand") -> bool:
        if self.partition or other.partition:
            return self.partition == other.partition
        return bool(set(self.allocations) & set(other.allocations))


class _Entry(NamedTuple):
    """A row of the queue."""

    job: WaitingJob
    lease: str
    allocations: str
    # When the job asked last, on the clock of the leases.
    heard: float

    def is_before(self, demand: Demand, now: float) -> bool:
        """Return whether later jobs with a demand have to wait for this one."""
        own = Demand(self.job.partition, tuple(self.allocations.split()))
        return self.heard > now - SILENT_S and own.competes_with(demand)


def find_demand(
    db: Transaction, acquisition: Acquisition, partition: Partition | None
) -> Demand:
    """Return what a job waits for.

    Args:
        partition: The partition that it names; None if that is to be made.

    Raises:
        VipuError: There are no such IPUs.
    """
    if partition is not None or acquisition.create is None:
        return Demand(acquisition.partition, ())
    check_alone(acquisition.create, strict=db.strict)
    names = tuple(name for name, _ in find_places(db, acquisition.create))
    return Demand("", names)


def check_size(db: Transaction, acquisition: Acquisition, demand: Demand) -> None:
    """Check that there are as many IPUs as a job waits for.

    Raises:
        VipuRuleError: It would wait in vain.
    """
    if demand.partition or acquisition.create is None:
        return
    size = acquisition.create.size
    most = max((count_ipus(db, name) for name in demand.allocations), default=0)
    if most < size:
        raise VipuRuleError(
            f"The job would wait in vain for {counted(size, 'IPU')}: the largest "
            f"allocation that it can have them from has {most}. Ask for fewer, or name "
            "another cluster or allocation."
        )


def enter(db: Transaction, acquisition: Acquisition, demand: Demand) -> None:
    """Let a job wait, or go on waiting where it is."""
    check_holder(acquisition.holder)
    if len(acquisition.lease) != 32:
        raise VipuRuleError("A job that waits draws the id of its lease before.")
    now = advance_clock(db)
    allocations = " ".join(demand.allocations)
    asks_again = db.column("SELECT 1 FROM waiting WHERE lease = ?", acquisition.lease)
    if asks_again:
        changes = {"heard": now, "partition": demand.partition}
        db.update(
            "waiting", changes | {"allocations": allocations}, lease=acquisition.lease
        )
    else:
        num_ipus = acquisition.num_children * acquisition.ipus_per_child
        job = WaitingJob(acquisition.holder, num_ipus, demand.partition, time.time())
        db.insert("waiting", _Entry(job, acquisition.lease, allocations, now))


def leave(db: Transaction, lease: str) -> None:
    """Let a job wait no longer."""
    db.delete("waiting", lease=lease)


def release(db: Transaction, lease: str) -> None:
    """End the lease of a job that has IPUs or waits for them."""
    end_lease(db, lease)
    leave(db, lease)


def jobs_before(db: Transaction, lease: str, demand: Demand) -> list[WaitingJob]:
    """Return the jobs that compete for the same IPUs and have waited longer.

    Those in front that have ended leave the queue.

    Args:
        lease: The id of the lease of a job, whether or not it waits.
        demand: What it wants.
    """
    now = advance_clock(db)
    before: list[WaitingJob] = []
    for entry in db.select(_Entry, "waiting ORDER BY rowid"):
        if entry.lease == lease:
            break
        if not entry.is_before(demand, now):
            continue
        # One that lives holds the job up: the others need no look at their processes.
        if not before and _has_ended(db, entry.job):
            leave(db, entry.lease)
            continue
        before.append(entry.job)
    return before


def take_turn(
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
    drop_forgotten(db)
    demand = find_demand(db, acquisition, partition)
    if before := jobs_before(db, acquisition.lease, demand):
        raise InUseError(
            f"{describe_jobs_before(before)} Wait behind "
            f"{'it' if len(before) == 1 else 'them'} with --wait-for-ipus."
        )
    leave(db, acquisition.lease)


def describe_jobs_before(jobs: list[WaitingJob]) -> str:
    """Return a sentence about the jobs that come before another."""
    first = jobs[0]
    ipus = counted(first.num_ipus, "IPU")
    if len(jobs) == 1:
        return f"A job that waits for {ipus} comes before it ({first.holder})."
    return (
        f"{len(jobs)} jobs that wait come before it; the first of them waits for "
        f"{ipus} ({first.holder})."
    )


def describe_use(db: Transaction, demand: Demand) -> str:
    """Return a sentence about who has what a job waits for."""
    if not demand.partition:
        return describe_users_of(db, demand.allocations).strip()
    holders = describe_holders(db, demand.partition)
    return f"{demand.partition} is held by {holders}." if holders else ""


def list_waiting(db: Transaction) -> tuple[WaitingJob, ...]:
    drop_forgotten(db)
    for entry in db.select(_Entry, "waiting"):
        if _has_ended(db, entry.job):
            leave(db, entry.lease)
    return db.select(WaitingJob, "waiting ORDER BY rowid")


def drop_forgotten(db: Transaction) -> None:
    """Let the jobs that have long not asked again wait no longer."""
    db.execute("DELETE FROM waiting WHERE heard <= ?", advance_clock(db) - FORGOTTEN_S)


def _has_ended(db: Transaction, job: WaitingJob) -> bool:
    return db.observer.life(job.holder.process, job.holder.host) is Life.DEAD
