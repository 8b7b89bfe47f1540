"""Devices in the database: parents and children that leases hold, and attachments."""

from typing import Any

from poprun.vipu.errors import DeviceError, InUseError, MismatchError
from poprun.vipu.inventory.sqlite import Connection
from poprun.vipu.inventory.tables.lease_store import (
    COLUMNS,
    as_lease,
    as_process,
    get_lease,
)
from poprun.vipu.inventory.tables.occupants import describe_holders
from poprun.vipu.leases import PARENT, Lease, ProcessIdentity, Reservation
from poprun.vipu.model import Partition
from poprun.vipu.requests import Acquisition
from poprun.vipu.rules import numbering
from poprun.vipu.rules.numbering import Device
from poprun.vipu.rules.partition_rules import counted, describe


def reserve(
    db: Connection, partition: Partition, asked: Acquisition, lease: Lease
) -> tuple[Device, tuple[Device, ...]]:
    """Let a lease hold a parent device, and a child device for each instance.

    Raises:
        InUseError: Other leases hold the IPUs.
        MismatchError: The partition has too few, even when all are free.
    """
    num_ipus = asked.num_children * asked.ipus_per_child
    if num_ipus > partition.size or min(asked.num_children, asked.ipus_per_child) < 1:
        raise MismatchError(
            f"Partition {describe(partition)} cannot serve a job of "
            f"{counted(num_ipus, 'IPU')}. Let poprun change it with "
            "--update-partition=yes, or name another with --vipu-partition."
        )
    parent = _free_parent(db, partition, asked)
    children = numbering.children_of(
        partition.size, parent, asked.num_children, asked.ipus_per_child
    )
    db.executemany(
        "INSERT INTO devices (lease, child, partition_name, id, first, num_ipus) "
        "VALUES (?, ?, ?, ?, ?, ?)",
        [
            (lease.id, child, partition.name, device.id, device.first, device.num_ipus)
            for child, device in enumerate((parent, *children), start=PARENT)
        ],
    )
    return parent, children


def _free_parent(db: Connection, partition: Partition, asked: Acquisition) -> Device:
    rows = db.execute(
        "SELECT id, first, num_ipus FROM devices WHERE partition_name = ? "
        "AND child = ?",
        (partition.name, PARENT),
    )
    taken = [Device(*row) for row in rows]
    size = partition.size
    if partition.reconfigurable:
        size = numbering.parent_size(asked.num_children, asked.ipus_per_child)
    first = numbering.first_free(partition.size, size, taken)
    if first < 0:
        held = sum(device.num_ipus for device in taken)
        raise InUseError(
            f"Partition {describe(partition)} is in use: {held} of its "
            f"{counted(partition.size, 'IPU')} are held by "
            f"{describe_holders(db, partition.name)}. The job needs "
            f"{size} that are free and next to each other. Wait until they are, or "
            "name another partition with --vipu-partition."
        )
    return numbering.make_device(partition.size, first, size)


def check_unused(
    db: Connection, partition: Partition, verb: str, lease: str | None
) -> None:
    """Check that no other lease holds devices of a partition.

    Raises:
        InUseError: One does.
    """
    holders = describe_holders(db, partition.name, but_for=lease)
    if holders:
        raise InUseError(
            f"Partition {describe(partition)} cannot be {verb}, because it is in "
            f"use by {holders}. Wait until it is free, or use another partition."
        )


def release_devices(db: Connection, partition: str) -> None:
    """Take all devices of a partition from the leases that hold them."""
    db.execute("DELETE FROM devices WHERE partition_name = ?", (partition,))


def attach(
    db: Connection, lease: str, child: int, process: ProcessIdentity
) -> tuple[Device, ProcessIdentity | None]:
    """Return a child device, and the other process that is attached to it, if any."""
    get_lease(db, lease)
    found = _child(db, lease, child)
    other = found.process
    if other is not None and other != process:
        return found.device, other
    _set_process(db, lease, child, process)
    return found.device, None


def take_over(db: Connection, lease: str, child: int, process: ProcessIdentity) -> None:
    """Attach a process to a device whose process has ended."""
    _set_process(db, lease, child, process)


def detach(db: Connection, lease: str, child: int, process: ProcessIdentity) -> None:
    if _child(db, lease, child).process == process:
        db.execute(
            "UPDATE devices SET pid = NULL, start_time = NULL, boot_id = NULL, "
            "pid_namespace = NULL WHERE lease = ? AND child = ?",
            (lease, child),
        )


def list_reservations(db: Connection, partition: str | None) -> tuple[Reservation, ...]:
    rows = db.execute(
        f"SELECT {COLUMNS}, partition_name, child, devices.id, first, num_ipus, "
        "devices.pid, devices.start_time, devices.boot_id, devices.pid_namespace "
        "FROM devices JOIN leases ON leases.id = lease "
        "WHERE ?1 IS NULL OR partition_name = ?1 "
        "ORDER BY leases.since, leases.id, child",
        (partition,),
    ).fetchall()
    return tuple(map(_reservation, rows))


def _child(db: Connection, lease: str, child: int) -> Reservation:
    row = db.execute(
        f"SELECT {COLUMNS}, partition_name, child, devices.id, first, num_ipus, "
        "devices.pid, devices.start_time, devices.boot_id, devices.pid_namespace "
        "FROM devices JOIN leases ON leases.id = lease WHERE lease = ? AND child = ?",
        (lease, child),
    ).fetchone()
    if row is None:
        row = db.execute(
            "SELECT partition_name, count(*) - 1 FROM devices WHERE lease = ?", (lease,)
        ).fetchone()
        raise DeviceError(
            f"Partition {row[0]} has no device for instance {child}: the job holds "
            f"{counted(row[1], 'device')} of it, for instances from 0 on. Start the "
            "job with as many instances as it has."
        )
    return _reservation(row)


def _set_process(
    db: Connection, lease: str, child: int, process: ProcessIdentity
) -> None:
    db.execute(
        "UPDATE devices SET pid = ?, start_time = ?, boot_id = ?, pid_namespace = ? "
        "WHERE lease = ? AND child = ?",
        (*process, lease, child),
    )


def _reservation(row: tuple[Any, ...]) -> Reservation:
    partition = row[10]
    child, number, first, num_ipus = map(int, row[11:15])
    return Reservation(
        partition=partition,
        device=Device(number, first, num_ipus),
        lease=as_lease(row[:10]),
        child=None if child == PARENT else child,
        process=None if row[15] is None else as_process(row[15:19]),
    )
