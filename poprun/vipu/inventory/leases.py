"""Leases, the devices that they hold, and the processes attached to those."""

import os
import time
from collections.abc import Sequence

from poprun.vipu import errors, liveness
from poprun.vipu.inventory.partitions import delete_partition
from poprun.vipu.inventory.transaction import Transaction
from poprun.vipu.leases import (
    PARENT,
    Acquisition,
    Lease,
    Life,
    ProcessIdentity,
    Reservation,
    check_holder,
    check_process,
    check_text,
)
from poprun.vipu.model import Partition, next_power_of_two
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


def open_lease(db: Transaction, request: Acquisition) -> Lease:
    """Make a lease that holds nothing yet; without an id it draws one.

    Raises:
        VipuRuleError: The holder, the time or the id is not valid.
        NameTakenError: There is a lease with this id.
    """
    lease_id, lease_s = request.lease or os.urandom(16).hex(), request.lease_s
    check_holder(request.holder)
    check_id(lease_id)
    if request.lease and db.column("SELECT 1 FROM leases WHERE id = ?", lease_id):
        raise errors.NameTakenError(
            f"Lease {lease_id} already exists. Draw another id."
        )
    if not 1 <= lease_s <= LONGEST_LEASE_S:
        raise errors.VipuRuleError(
            f"A lease cannot live for {lease_s:g} s, but for 1 to {LONGEST_LEASE_S:g}."
        )
    lease = Lease(
        id=lease_id,
        holder=request.holder,
        since=time.time(),
        lease_s=lease_s,
        spans_hosts=request.spans_hosts,
    )
    host, boot_id = request.holder.host, request.holder.process.boot_id
    ends = advance_clock(db) + lease_s
    db.insert("leases", lease, ends=ends, host=host, boot_id=boot_id)
    return lease


def check_id(lease: str) -> None:
    """Check the id that a job has drawn for its lease.

    Raises:
        VipuRuleError: It is none.
    """
    if len(lease) != 32 or set(lease) - set("0123456789abcdef"):
        raise errors.VipuRuleError(
            f"{lease[:40]!r} is not a lease id: use 32 hexadecimal digits."
        )


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
    """Let a lease live for its time again, from now on.

    Raises:
        LeaseEndedError: It has ended.
    """
    renewed = get_lease(db, lease)
    ends = advance_clock(db) + renewed.lease_s
    db.execute("UPDATE leases SET ends = ? WHERE id = ?", ends, lease)
    return renewed


def end_lease(db: Transaction, lease: str) -> None:
    """End a lease; to end one that has ended does nothing.

    A partition that was made for it goes, unless another job has devices of it: then
    it goes with that job.
    """
    db.execute("DELETE FROM devices WHERE lease = ?", lease)
    for partition in db.select(Partition, "partitions WHERE lease = ?", lease):
        if others := leases_on(db, partition.name):
            statement = "UPDATE partitions SET lease = ? WHERE name = ?"
            db.execute(statement, others[0], partition.name)
        else:
            delete_partition(db, partition)
    db.execute("DELETE FROM leases WHERE id = ?", lease)


def advance_clock(db: Transaction) -> float:
    """Return what the clock of the leases shows now, in seconds.

    It counts the time in which holders could renew their leases, because none must end
    while they cannot: the server is down or stopped, the database locked, the machine
    asleep. So of the time since it was last read only `longest_step_s` count at most.
    """
    boot_id, seconds, read_at = db.execute("SELECT * FROM lease_clock").fetchone()
    now = liveness.time_since_boot()
    is_same_boot = boot_id == liveness.boot_id()
    if is_same_boot:
        seconds += min(max(0.0, now - read_at), db.longest_step_s)
    if not is_same_boot or abs(now - read_at) >= CLOCK_DUE_S:
        statement = "UPDATE lease_clock SET boot_id = ?, reachable_s = ?, read_at = ?"
        db.execute(statement, liveness.boot_id(), seconds, now)
    return float(seconds)


def may_end(db: Transaction) -> bool:
    """Return whether `end_dead_leases` could find anything: most often it could not."""
    in_sight = db.select(
        Lease,
        "leases WHERE boot_id = ? OR host = ?",
        liveness.boot_id(),
        db.observer.host,
    )
    lives = {_life(db, lease) for lease in in_sight}
    (count,) = db.column("SELECT count(*) FROM leases")
    if count > len(in_sight):  # a server may have thousands on other machines
        lives.add(Life.UNKNOWN)
    (read_at,) = db.column("SELECT read_at FROM lease_clock")
    is_clock_due = abs(liveness.time_since_boot() - read_at) >= CLOCK_DUE_S
    return Life.DEAD in lives or (Life.UNKNOWN in lives and is_clock_due)


def end_dead_leases(db: Transaction) -> tuple[Lease, ...]:
    """End the leases of holders that are gone, and return them.

    An instance may live a little longer than the poprun that held the lease. So a lease
    lives as long as its attached processes, and if instances run on other hosts, for
    its time.
    """
    now = advance_clock(db)
    late = set(db.column("SELECT id FROM leases WHERE ends <= ?", now))
    lives = [(lease, _life(db, lease)) for lease in list_leases(db)]
    dead = tuple(
        lease
        for lease, life in lives
        if life is Life.DEAD or (life is Life.UNKNOWN and lease.id in late)
    )
    for lease in dead:
        end_lease(db, lease.id)
    return dead


def _life(db: Transaction, lease: Lease) -> Life:
    """Return the life of the liveliest of a lease's processes."""
    holder = lease.holder
    lives = [db.observer.life(holder.process, holder.host)]
    if lives == [Life.ALIVE]:
        return Life.ALIVE
    query = "SELECT process, host FROM devices WHERE lease = ? AND process IS NOT NULL"
    for process, host in db.execute(query, lease.id):
        # Hosts may have the name of this one: a process of another is dead if it is
        # seen to be.
        lives.append(db.observer.life(process, "" if host else holder.host))
    if lease.spans_hosts:
        lives.append(Life.UNKNOWN)
    return min(lives, key=LIVELIEST.index)


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
        leases = leases_on(db, partition.name)
        user = f"kept by user {partition.owner} since {_time_text(partition.created)}"
        lease = partition.lease or next(iter(leases), None)
        holder = describe_lease(db, lease) if lease else user
        parts.append(f"{partition.name} ({counted(partition.size, 'IPU')}, {holder})")
    noun = "partition" if count == 1 else "partitions"
    more = f" and {count - MOST_NAMED} more" if count > MOST_NAMED else ""
    return f"In use by {noun} {', '.join(parts)}{more}. "


def describe_holders(db: Transaction, partition: str) -> str:
    """Say who holds devices of a partition; empty if no lease does."""
    leases = leases_on(db, partition)
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


def leases_on(db: Transaction, partition: str) -> list[str]:
    """Return the ids of the leases that hold devices of a partition."""
    query = "SELECT DISTINCT lease FROM devices WHERE partition = ? ORDER BY lease"
    return db.column(query, partition)


def reserve(
    db: Transaction, partition: Partition, request: Acquisition, lease: Lease
) -> tuple[Device, tuple[Device, ...]]:
    """Let a lease hold a parent device, and a child device for each instance.

    Raises:
        InUseError: Other leases hold the IPUs.
        MismatchError: The partition has too few, even when all are free.
    """
    num_children, share = request.num_children, request.ipus_per_child
    num_ipus = num_children * share
    if num_ipus > partition.size or min(num_children, share) < 1:
        raise errors.MismatchError(
            f"Partition {describe(partition)} cannot serve a job of "
            f"{counted(num_ipus, 'IPU')}. Let poprun change it with "
            "--update-partition=yes, or name another with --vipu-partition."
        )
    size = partition.size
    if partition.reconfigurable:
        size = next_power_of_two(num_ipus)
    query = f"devices WHERE partition = ? AND child = {PARENT}"
    parents = db.select(Device, query, partition.name)
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
    parent = numbering.make_device(partition.size, first, size)
    children = numbering.children_of(partition.size, parent, num_children, share)
    for child, device in enumerate((parent, *children), start=PARENT):
        owner = {"lease": lease.id, "child": child, "partition": partition.name}
        db.insert("devices", device, **owner)
    return parent, children


def check_unused(db: Transaction, partition: Partition, verb: str) -> None:
    """Check that no lease holds devices of a partition.

    Raises:
        InUseError: One does.
    """
    if holders := describe_holders(db, partition.name):
        raise errors.InUseError(
            f"Partition {describe(partition)} cannot be {verb}, because it is in "
            f"use by {holders}. Wait until it is free, or use another partition."
        )


def attach(
    db: Transaction,
    lease: str,
    child: int,
    process: ProcessIdentity,
    host: str | None = None,
) -> Device:
    """Attach a process to the child device of an instance, until it ends.

    `child` may be `leases.PARENT` for the guard of the job: see there. `host` names
    the host of the process, if the holder of the lease is on another.
    A process that is attached to it already stays so.

    Raises:
        LeaseEndedError: The lease has ended.
        DeviceError: There is no such child, or another living process has it.
    """
    check_process(process)
    if host is not None:
        check_text("host of a process", host)
    held = _get_child(db, lease, child)
    other, other_host = held.process, "" if held.host else held.lease.holder.host
    if (
        other is not None
        and other != process
        and db.observer.life(other, other_host) is not Life.DEAD
    ):
        raise errors.DeviceError(
            f"Process {process.pid} cannot attach to device {held.device.id} of "
            f"instance {child}, because process {other.pid} of the same job is "
            "attached to it. Let one process of each instance attach, and the others "
            "work through it."
        )
    statement = "UPDATE devices SET process = ?, host = ? WHERE lease = ? AND child = ?"
    db.execute(statement, process, host, lease, child)
    return held.device


def detach(db: Transaction, lease: str, child: int, process: ProcessIdentity) -> None:
    """Detach a process from a device; the lease still holds it."""
    _get_child(db, lease, child)
    statement = "UPDATE devices SET process = NULL, host = NULL"
    which = "WHERE lease = ? AND child = ? AND process = ?"
    db.execute(f"{statement} {which}", lease, child, process)


def list_reservations(
    db: Transaction, partition: str | None = None
) -> tuple[Reservation, ...]:
    return tuple(
        reservation
        for lease in list_leases(db)
        for reservation in _held_by(db, lease)
        if partition in (None, reservation.partition)
    )


def _held_by(
    db: Transaction, lease: Lease, child: int | None = None
) -> list[Reservation]:
    """Return the devices of a lease, or the one of a child."""
    return [
        Reservation(
            partition=partition,
            device=Device(id=number, first=first, num_ipus=num_ipus),
            lease=lease,
            child=None if index == PARENT else index,
            process=process,
            host=host,
        )
        for partition, number, first, num_ipus, index, process, host in db.execute(
            "SELECT partition, id, first, num_ipus, child, process, host FROM devices "
            "WHERE lease = ?1 AND (?2 IS NULL OR child = ?2) ORDER BY child",
            lease.id,
            child,
        )
    ]


def _get_child(db: Transaction, lease: str, child: int) -> Reservation:
    """Return a device of a lease, and the process that is attached to it.

    Raises:
        LeaseEndedError: The lease has ended.
        DeviceError: It holds no such device.
    """
    for reservation in _held_by(db, get_lease(db, lease), child):
        return reservation
    query = "SELECT partition, count(*) - 1 FROM devices WHERE lease = ?"
    partition, number = db.execute(query, lease).fetchone()
    raise errors.DeviceError(
        f"Partition {partition} has no device for instance {child}: the job holds "
        f"{counted(number, 'device')} of it, for instances from 0 on. Start the "
        "job with as many instances as it has."
    )
