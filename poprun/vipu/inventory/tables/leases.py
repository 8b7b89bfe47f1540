"""Leases in the database, the devices that they hold, and the attached processes."""

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from poprun.vipu import errors, liveness
from poprun.vipu.inventory.rows import Transaction, columns_of
from poprun.vipu.inventory.tables.partitions import delete_partition
from poprun.vipu.leases import (
    PARENT,
    Lease,
    Life,
    ProcessIdentity,
    Reservation,
    check_holder,
    check_process,
    check_text,
)
from poprun.vipu.model import Partition, next_power_of_two
from poprun.vipu.requests import Acquisition
from poprun.vipu.rules import numbering
from poprun.vipu.rules.numbering import Device
from poprun.vipu.rules.partition_rules import describe
from poprun.words import counted

LONGEST_LEASE_S = 24 * 3600.0
# More holders than these are only counted.
MOST_NAMED = 4
# The clock of the leases is written no more often, as most changes of the inventory
# read it.
CLOCK_DUE_S = 1.0
LIVELIEST = (Life.ALIVE, Life.UNKNOWN, Life.DEAD)


def _columns(table: str, kind: type) -> str:
    return ", ".join(f"{table}.{column}" for column in columns_of(kind))


_RESERVATIONS = (
    f"SELECT partition, d.id, first, num_ipus, {_columns('l', Lease)}, "
    f"nullif(child, {PARENT}), {_columns('d', ProcessIdentity)}, d.host "
    "FROM devices d JOIN leases l ON l.id = lease "
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attached:
    """Columns of a device: the process that is attached to it, and where that runs."""

    process: ProcessIdentity
    # None for the host of the lease's holder.
    host: str | None


# The same of a device that no process is attached to.
_NO_PROCESS = dict.fromkeys(columns_of(_Attached))


@dataclass(frozen=True, slots=True, kw_only=True)
class _TimedLease:
    """A row: a lease, and when it ends if it is not renewed, on the leases' clock."""

    lease: Lease
    ends: float


def open_lease(db: Transaction, asked: Acquisition) -> Lease:
    """Make a lease that nothing is held by yet, with an id of its own without one.

    Raises:
        VipuRuleError: The holder, the time or the id is not valid.
        NameTakenError: There is a lease with this id.
    """
    lease_id, lease_s = asked.lease, asked.lease_s
    check_holder(asked.holder)
    if lease_id and (len(lease_id) != 32 or set(lease_id) - set("0123456789abcdef")):
        raise errors.VipuRuleError(
            f"{lease_id[:40]!r} is not a lease id: use 32 hexadecimal digits."
        )
    if db.column("SELECT 1 FROM leases WHERE id = ?", lease_id):
        raise errors.NameTakenError(
            f"Lease {lease_id} already exists. Draw another id."
        )
    if not 1 <= lease_s <= LONGEST_LEASE_S:
        raise errors.VipuRuleError(
            f"A lease cannot live for {lease_s:g} s, but for 1 to {LONGEST_LEASE_S:g}."
        )
    lease = Lease(
        id=lease_id or os.urandom(16).hex(),
        holder=asked.holder,
        since=time.time(),
        lease_s=lease_s,
        spans_hosts=asked.spans_hosts,
    )
    db.insert("leases", _TimedLease(lease=lease, ends=advance_clock(db) + lease_s))
    return lease


def get_lease(db: Transaction, lease: str) -> Lease:
    for existing in db.select(Lease, "leases WHERE id = ?", lease):
        return existing
    raise errors.LeaseEndedError(
        "The job's lease of its IPUs has ended, and others may have them. It was not "
        "renewed in time, or the partition was removed with --force. Start the job "
        "again."
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


def spans_hosts(db: Transaction, lease: str) -> bool:
    """Return whether there is such a lease, of a job with instances on other hosts."""
    return any(db.column("SELECT spans_hosts FROM leases WHERE id = ?", lease))


def end_after(db: Transaction, lease: str, wait_s: float) -> None:
    """Let a lease that is not renewed any more end after so long at most."""
    latest = advance_clock(db) + wait_s
    db.execute("UPDATE leases SET ends = min(ends, ?) WHERE id = ?", latest, lease)


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
    lives as long as a process that is attached by it, and for its time where instances
    run on other hosts.
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
    for timed in db.select(_TimedLease, "leases"):
        lease = timed.lease
        host = lease.holder.host
        life = life_of(lease.holder.process, host)
        if life is not Life.ALIVE:
            attached = "devices WHERE lease = ? AND pid IS NOT NULL"
            processes = db.select(_Attached, attached, lease.id)
            lives = [life, *(_life(db, process, lease) for process in processes)]
            if lease.spans_hosts:
                lives.append(Life.UNKNOWN)
            life = min(lives, key=LIVELIEST.index)
        yield lease, timed.ends, life


def _life(db: Transaction, attached: _Attached, lease: Lease) -> Life:
    """Return the life of an attached process."""
    # Hosts may have the name of this one: a process of another is dead if it is seen
    # to be.
    host = lease.holder.host if attached.host is None else ""
    return db.observer.life(attached.process, host)


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
    (existing,) = db.select(Lease, "leases WHERE id = ?", lease)
    return f"{existing.holder}, since {_time_text(existing.since)}"


def _time_text(seconds: float) -> str:
    """Write a time for people, in the time zone of this machine."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _leases_on(db: Transaction, partition: str) -> list[str]:
    query = "SELECT DISTINCT lease FROM devices WHERE partition = ? ORDER BY lease"
    return db.column(query, partition)


def reserve(
    db: Transaction, partition: Partition, acquisition: Acquisition, lease: Lease
) -> tuple[Device, tuple[Device, ...]]:
    """Let a lease hold a parent device, and a child device for each instance.

    Raises:
        InUseError: Other leases hold the IPUs.
        MismatchError: The partition has too few, even when all are free.
    """
    num_ipus = acquisition.num_children * acquisition.ipus_per_child
    if (
        num_ipus > partition.size
        or min(acquisition.num_children, acquisition.ipus_per_child) < 1
    ):
        raise errors.MismatchError(
            f"Partition {describe(partition)} cannot serve a job of "
            f"{counted(num_ipus, 'IPU')}. Let poprun change it with "
            "--update-partition=yes, or name another with --vipu-partition."
        )
    parent = _free_parent(db, partition, acquisition)
    children = numbering.children_of(
        partition.size, parent, acquisition.num_children, acquisition.ipus_per_child
    )
    for child, device in enumerate((parent, *children), start=PARENT):
        db.insert(
            "devices", lease.id, child, partition.name, device, *_NO_PROCESS.values()
        )
    return parent, children


def _free_parent(
    db: Transaction, partition: Partition, acquisition: Acquisition
) -> Device:
    query = f"devices WHERE partition = ? AND child = {PARENT}"
    parents = db.select(Device, query, partition.name)
    size = partition.size
    if partition.reconfigurable:
        num_ipus = acquisition.num_children * acquisition.ipus_per_child
        size = next_power_of_two(num_ipus)
    first = numbering.first_free(partition.size, size, parents)
    if first < 0:
        raise errors.InUseError(
            f"Partition {describe(partition)} is in use: "
            f"{sum(device.num_ipus for device in parents)} of its "
            f"{counted(partition.size, 'IPU')} are held by "
            f"{describe_holders(db, partition.name)}. The job needs "
            f"{size} that are free and next to each other. Wait until they are, or "
            "name another partition with --vipu-partition."
        )
    return numbering.make_device(partition.size, first, size)


def check_unused(
    db: Transaction, partition: Partition, verb: str, lease: str | None
) -> None:
    """Check that no other lease holds devices of a partition.

    Raises:
        InUseError: One does.
    """
    holders = describe_holders(db, partition.name, but_for=lease)
    if holders:
        raise errors.InUseError(
            f"Partition {describe(partition)} cannot be {verb}, because it is in "
            f"use by {holders}. Wait until it is free, or use another partition."
        )


def attach(
    db: Transaction, lease: str, child: int, process: ProcessIdentity, host: str | None
) -> Device:
    """Attach a process to a device, in place of one that has ended."""
    check_process(process)
    if host is not None:
        check_text("host of a process", host)
    reservation = _get_child(db, lease, child)
    device, other = reservation.device, reservation.process
    if (
        other is not None
        and other != process
        and _life(
            db, _Attached(process=other, host=reservation.host), reservation.lease
        )
        is not Life.DEAD
    ):
        raise errors.DeviceError(
            f"Process {process.pid} cannot attach to device {device.id} of instance "
            f"{child}, because process {other.pid} of the same job is attached to it. "
            "Let one process of each instance attach, and the others work through it."
        )
    db.update("devices", asdict(process) | {"host": host}, lease=lease, child=child)
    return device


def detach(db: Transaction, lease: str, child: int, process: ProcessIdentity) -> None:
    if _get_child(db, lease, child).process == process:
        db.update("devices", _NO_PROCESS, lease=lease, child=child)


def list_reservations(
    db: Transaction, partition: str | None
) -> tuple[Reservation, ...]:
    query = (
        f"{_RESERVATIONS}WHERE ?1 IS NULL OR partition = ?1 "
        "ORDER BY l.since, l.id, child"
    )
    return db.read(Reservation, query, partition)


def _get_child(db: Transaction, lease: str, child: int) -> Reservation:
    """Return a device that a lease holds, and who is attached to it.

    Raises:
        LeaseEndedError: The lease has ended.
        DeviceError: It holds no such device.
    """
    get_lease(db, lease)
    query = f"{_RESERVATIONS}WHERE lease = ? AND child = ?"
    for reservation in db.read(Reservation, query, lease, child):
        return reservation
    query = "SELECT partition, count(*) - 1 FROM devices WHERE lease = ?"
    partition, number = db.execute(query, lease).fetchone()
    raise errors.DeviceError(
        f"Partition {partition} has no device for instance {child}: the job holds "
        f"{counted(number, 'device')} of it, for instances from 0 on. Start the "
        "job with as many instances as it has."
    )
