"""Leases in the database: who holds IPUs, and what is freed when a lease ends."""

import os
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from poprun.vipu import errors, liveness
from poprun.vipu.inventory.rows import Transaction
from poprun.vipu.inventory.tables.partitions import delete_partition
from poprun.vipu.leases import Holder, Lease, Life, ProcessIdentity, check_holder
from poprun.vipu.model import Partition
from poprun.words import counted

LONGEST_LEASE_S = 24 * 3600.0
# More holders than these are only counted.
MOST_NAMED = 4
# The clock of the leases is written no more often, as most changes of the inventory
# read it.
CLOCK_DUE_S = 1.0
LIVELIEST = (Life.ALIVE, Life.UNKNOWN, Life.DEAD)


class _TimedLease(NamedTuple):
    """A row: a lease, and when it ends if it is not renewed, on the leases' clock."""

    lease: Lease
    ends: float


def open_lease(db: Transaction, holder: Holder, lease_s: float, lease_id: str) -> Lease:
    """Make a lease that nothing is held by yet, with an id of its own without one.

    Raises:
        VipuRuleError: The holder, the time or the id is not valid.
        NameTakenError: There is a lease with this id.
    """
    check_holder(holder)
    if lease_id and (len(lease_id) != 32 or set(lease_id) - set("0123456789abcdef")):
        raise errors.VipuRuleError(
            f"{lease_id[:40]!r} is no id of a lease: use 32 hexadecimal digits."
        )
    if db.column("SELECT 1 FROM leases WHERE id = ?", lease_id):
        raise errors.NameTakenError(
            f"There is a lease {lease_id} already. Draw another id."
        )
    if not 1 <= lease_s <= LONGEST_LEASE_S:
        raise errors.VipuRuleError(
            f"A lease cannot live for {lease_s:g} s, but for 1 to {LONGEST_LEASE_S:g}."
        )
    lease = Lease(lease_id or os.urandom(16).hex(), holder, time.time(), lease_s)
    db.insert("leases", _TimedLease(lease, advance_clock(db) + lease_s))
    return lease


def get_lease(db: Transaction, lease: str) -> Lease:
    for existing in db.select(Lease, "leases WHERE id = ?", lease):
        return existing
    raise errors.LeaseEndedError(
        "The job's lease of its IPUs has ended, so that others may have them. It "
        "was not renewed in time, or the partition was removed with --force. Start "
        "the job again."
    )


def list_leases(db: Transaction) -> tuple[Lease, ...]:
    return db.select(Lease, "leases ORDER BY since, id")


def renew(db: Transaction, lease: str) -> Lease:
    renewed = get_lease(db, lease)
    db.update("leases", {"ends": advance_clock(db) + renewed.lease_s}, id=lease)
    return renewed


def end_lease(db: Transaction, lease: str) -> None:
    """End a lease; to end one that has ended does nothing.

    A partition that was made for it goes, unless another job has devices of it: then
    it goes with that job.
    """
    db.delete("devices", lease=lease)
    for partition in db.select(Partition, "partitions WHERE lease = ?", lease):
        if others := _leases_on(db, partition.name):
            db.update("partitions", {"lease": others[0]}, name=partition.name)
        else:
            delete_partition(db, partition)
    db.delete("leases", id=lease)


def advance_clock(db: Transaction) -> float:
    """Return what the clock of the leases shows now, in seconds.

    It counts the time in which holders could renew their leases, because none must end
    while they cannot: the server is down or stopped, the database locked, the machine
    asleep. So of the time since it was last read only `longest_step_s` count at most.
    """
    seconds, boot_id, read_at = db.execute("SELECT * FROM lease_clock").fetchone()
    now = liveness.time_since_boot()
    is_same_boot = boot_id == liveness.boot_id()
    if is_same_boot:
        seconds += min(max(0.0, now - read_at), db.longest_step_s)
    if not is_same_boot or abs(now - read_at) >= CLOCK_DUE_S:
        columns = "reachable_s = ?, boot_id = ?, read_at = ?"
        row = (seconds, liveness.boot_id(), now)
        db.execute(f"UPDATE lease_clock SET {columns}", *row)
    return float(seconds)


def may_end(db: Transaction) -> bool:
    """Return whether `end_dead` could find anything: most often it could not."""
    lives = {life for _, _, life in _lives(db)}
    if Life.DEAD in lives:
        return True
    (read_at,) = db.column("SELECT read_at FROM lease_clock")
    is_clock_due = abs(liveness.time_since_boot() - read_at) >= CLOCK_DUE_S
    return Life.UNKNOWN in lives and is_clock_due


def end_dead(db: Transaction) -> tuple[Lease, ...]:
    """End the leases of holders that are gone, and return them.

    An instance may live a little longer than the poprun that held the lease: a lease
    lives as long as a process that is attached by it.
    """
    now = advance_clock(db)
    dead = tuple(
        lease
        for lease, ends, life in _lives(db)
        if life is Life.DEAD or (life is Life.UNKNOWN and ends <= now)
    )
    for lease in dead:
        end_lease(db, lease.id)
    return dead


def _lives(db: Transaction) -> Iterator[tuple[Lease, float, Life]]:
    """Iterate over all leases: which, when it ends, the life of its processes."""
    life_of = db.observer.life
    for lease, ends in db.select(_TimedLease, "leases"):
        host = lease.holder.host
        life = life_of(lease.holder.process, host)
        if life is not Life.ALIVE:
            attached = "devices WHERE lease = ? AND pid IS NOT NULL"
            processes = db.select(ProcessIdentity, attached, lease.id)
            lives = [life, *(life_of(process, host) for process in processes)]
            life = min(lives, key=LIVELIEST.index)
        yield lease, ends, life


def describe_users_of(
    db: Transaction, allocations: Sequence[str], besides: str = ""
) -> str:
    """Return a sentence about the partitions in some allocations, the largest first.

    Args:
        besides: The name of a partition that the sentence leaves out.
    """
    marks = ", ".join("?" * len(allocations))
    source = f"partitions WHERE allocation IN ({marks}) AND name <> ?"
    (count,) = db.column(f"SELECT count(*) FROM {source}", *allocations, besides)
    if not count:
        return ""
    largest = f"{source} ORDER BY size DESC, created LIMIT {MOST_NAMED}"
    parts = []
    for partition in db.select(Partition, largest, *allocations, besides):
        leases = (
            [partition.lease] if partition.lease else _leases_on(db, partition.name)
        )
        user = f"kept by user {partition.owner} since {_time_text(partition.created)}"
        holder = describe_lease(db, leases[0]) if leases else user
        parts.append(f"{partition.name} ({counted(partition.size, 'IPU')}, {holder})")
    noun = "partition" if count == 1 else "partitions"
    more = f" and {count - MOST_NAMED} more" if count > MOST_NAMED else ""
    return f"In use by {noun} {', '.join(parts)}{more}. "


def describe_holders(
    db: Transaction, partition: str, but_for: str | None = None
) -> str:
    """Say who holds devices of a partition; empty if no other lease does."""
    leases = [lease for lease in _leases_on(db, partition) if lease != but_for]
    parts = [describe_lease(db, lease) for lease in leases[:MOST_NAMED]]
    more = len(leases) - MOST_NAMED
    return "; ".join(parts) + (f"; and {more} more" if more > 0 else "")


def describe_lease(db: Transaction, lease: str) -> str:
    """Return `user alice, job 3f2a, host h1, since 2026-11-22 10:15:00`."""
    ((_, holder, since, _),) = db.select(Lease, "leases WHERE id = ?", lease)
    return f"{holder}, since {_time_text(since)}"


def _time_text(seconds: float) -> str:
    """Write a time for people, in the time zone of this machine."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _leases_on(db: Transaction, partition: str) -> list[str]:
    query = "SELECT DISTINCT lease FROM devices WHERE partition = ? ORDER BY lease"
    return db.column(query, partition)
