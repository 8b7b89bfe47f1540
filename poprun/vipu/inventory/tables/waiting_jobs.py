"""Jobs that wait for IPUs, in the database: who comes before whom.

First come, first served: no job gets IPUs that a job which has waited longer competes
for, so small jobs do not starve a large one. Jobs compete for the same partition, or if
partitions for them may be made from the same allocation.
"""

import time
from _sqlite3 import Connection
from typing import NamedTuple

from poprun.vipu.errors import InUseError, VipuRuleError
from poprun.vipu.inventory.tables.allocations import count_ipus
from poprun.vipu.inventory.tables.leases import end_lease
from poprun.vipu.inventory.tables.occupants import describe_holders, describe_users_of
from poprun.vipu.inventory.tables.placement import find_places
from poprun.vipu.inventory.tables.rows import from_row, insert, select, select_column
from poprun.vipu.leases import Life, check_holder
from poprun.vipu.liveness import Observer
from poprun.vipu.model import Partition
from poprun.vipu.requests import Acquisition, WaitingJob
from poprun.vipu.rules.partition_rules import check_alone
from poprun.words import counted

# A job that has not asked again for so long holds no others up. It keeps its ticket, so
# it is where it was in the queue if it asks again.
SILENT_S = 15.0
# After so long it leaves the queue: its machine may have lost power.
FORGOTTEN_S = 3600.0
_COLUMNS = (
    "user, job, host, pid, start_time, boot_id, pid_namespace, num_ipus, "
    "partition_name, since"
)


class Demand(NamedTuple):
    """Which IPUs of an inventory a job waits for."""

    # Empty if a partition is to be made.
    partition: str
    allocations: tuple[str, ...]

    def competes_with(self, other: "Demand") -> bool:
        if self.partition or other.partition:
            return self.partition == other.partition
        return bool(set(self.allocations) & set(other.allocations))


def is_used(db: Connection) -> bool:
    """Return whether any job waits: most often none does."""
    return bool(select_column(db, "SELECT 1 FROM waiting LIMIT 1"))


def find_demand(
    db: Connection, asked: Acquisition, partition: Partition | None, *, strict: bool
) -> Demand:
    """Return what a job waits for.

    Args:
        partition: The partition that it names; None if that is to be made.

    Raises:
        VipuError: There are no such IPUs.
    """
    if partition is not None or asked.create is None:
        return Demand(asked.partition, ())
    check_alone(asked.create, strict=strict)
    names = tuple(name for name, _ in find_places(db, asked.create))
    return Demand("", names)


def check_size(db: Connection, asked: Acquisition, demand: Demand) -> None:
    """Check that there are as many IPUs as a job waits for.

    Raises:
        VipuRuleError: It would wait in vain.
    """
    if demand.partition or asked.create is None:
        return
    size = asked.create.size
    most = max((count_ipus(db, name) for name in demand.allocations), default=0)
    if most < size:
        raise VipuRuleError(
            f"The job would wait in vain for {counted(size, 'IPU')}: the largest "
            f"allocation that it can have them from has {most}. Ask for fewer, or name "
            "another cluster or allocation."
        )


def enter(db: Connection, asked: Acquisition, demand: Demand, now: float) -> None:
    """Let a job wait, or go on waiting where it is; `now` is the leases' clock."""
    check_holder(asked.holder)
    if len(asked.lease) != 32:
        raise VipuRuleError("A job that waits draws the id of its lease before.")
    allocations = " ".join(demand.allocations)
    again = db.execute(
        "UPDATE waiting SET heard = ?, partition_name = ?, allocations = ? "
        "WHERE lease = ?",
        (now, demand.partition, allocations, asked.lease),
    )
    if not again.rowcount:
        num_ipus = asked.num_children * asked.ipus_per_child
        job = WaitingJob(asked.holder, num_ipus, demand.partition, time.time())
        table = f"waiting ({_COLUMNS}, lease, allocations, heard)"
        insert(db, table, job, asked.lease, allocations, now)


def leave(db: Connection, lease: str) -> None:
    """Let a job wait no longer."""
    db.execute("DELETE FROM waiting WHERE lease = ?", (lease,))


def release(db: Connection, lease: str) -> None:
    """End the lease of a job that has IPUs or waits for them."""
    end_lease(db, lease)
    leave(db, lease)


def jobs_before(
    db: Connection, lease: str, demand: Demand, observer: Observer, now: float
) -> list[WaitingJob]:
    """Return the jobs that compete for the same IPUs and have waited longer.

    Those in front that have ended leave the queue.

    Args:
        lease: The id of the lease of a job, whether or not it waits.
        demand: What it wants.
        observer: Tells whether they live.
        now: What the clock of the leases shows.
    """
    own = db.execute(
        "SELECT ticket FROM waiting WHERE lease = ?", (lease,)
    ).fetchone() or (None,)
    rows = db.execute(
        f"SELECT {_COLUMNS}, allocations, heard, lease FROM waiting "
        "WHERE ?1 IS NULL OR ticket < ?1 ORDER BY ticket",
        own,
    ).fetchall()
    before: list[WaitingJob] = []
    for *columns, allocations, heard, other in rows:
        job = from_row(WaitingJob, columns)
        if heard <= now - SILENT_S or not demand.competes_with(
            Demand(job.partition, tuple(allocations.split()))
        ):
            continue
        # One that lives holds the job up: the others need no look at their processes.
        if not before and _has_ended(job, observer):
            leave(db, other)
            continue
        before.append(job)
    return before


def check_turn(
    db: Connection, asked: Acquisition, demand: Demand, observer: Observer, now: float
) -> None:
    """Check that no job which waits comes before another one.

    Raises:
        InUseError: One does.
    """
    before = jobs_before(db, asked.lease, demand, observer, now)
    if before:
        raise InUseError(
            f"{describe_jobs_before(before)} Wait behind "
            f"{'it' if len(before) == 1 else 'them'} with --wait-for-ipus."
        )


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


def describe_use(db: Connection, demand: Demand) -> str:
    """Return a sentence about who has what a job waits for."""
    if not demand.partition:
        return describe_users_of(db, demand.allocations).strip()
    holders = describe_holders(db, demand.partition)
    return f"{demand.partition} is held by {holders}." if holders else ""


def list_waiting(db: Connection) -> tuple[WaitingJob, ...]:
    return select(db, WaitingJob, f"SELECT {_COLUMNS} FROM waiting ORDER BY ticket")


def _has_ended(job: WaitingJob, observer: Observer) -> bool:
    return observer.life(job.holder.process, job.holder.host) is Life.DEAD


def drop_forgotten(db: Connection, now: float) -> None:
    """Let the jobs that have long not asked again wait no longer."""
    db.execute("DELETE FROM waiting WHERE heard <= ?", (now - FORGOTTEN_S,))


def drop_dead(db: Connection, observer: Observer) -> None:
    """Let the jobs that have ended wait no longer."""
    rows = db.execute(f"SELECT {_COLUMNS}, lease FROM waiting").fetchall()
    for *columns, lease in rows:
        if _has_ended(from_row(WaitingJob, columns), observer):
            leave(db, lease)
