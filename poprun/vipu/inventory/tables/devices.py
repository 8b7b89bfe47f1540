"""Devices in the database: parents and children that leases hold, and attachments."""

from _sqlite3 import Connection

from poprun.vipu.errors import DeviceError, InUseError, MismatchError
from poprun.vipu.inventory.tables.leases import COLUMNS, get_lease
from poprun.vipu.inventory.tables.occupants import describe_holders
from poprun.vipu.inventory.tables.rows import insert, select
from poprun.vipu.leases import PARENT, Lease, ProcessIdentity, Reservation
from poprun.vipu.model import Partition
from poprun.vipu.requests import Acquisition
from poprun.vipu.rules import numbering
from poprun.vipu.rules.numbering import Device
from poprun.vipu.rules.partition_rules import describe
from poprun.words import counted

_RESERVATIONS = (
    f"SELECT partition_name, devices.id, first, num_ipus, {COLUMNS}, "
    f"nullif(child, {PARENT}), devices.pid, devices.start_time, devices.boot_id, "
    "devices.pid_namespace FROM devices JOIN leases ON leases.id = lease "
)


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
    table = "devices (lease, child, partition_name, id, first, num_ipus)"
    for child, device in enumerate((parent, *children), start=PARENT):
        insert(db, table, lease.id, child, partition.name, device)
    return parent, children


def _free_parent(db: Connection, partition: Partition, asked: Acquisition) -> Device:
    query = (
        f"SELECT id, first, num_ipus FROM devices WHERE child = {PARENT} "
        "AND partition_name = ?"
    )
    parents = select(db, Device, query, (partition.name,))
    size = partition.size
    if partition.reconfigurable:
        size = numbering.parent_size(asked.num_children, asked.ipus_per_child)
    first = numbering.first_free(partition.size, size, parents)
    if first < 0:
        raise InUseError(
            f"Partition {describe(partition)} is in use: "
            f"{sum(device.num_ipus for device in parents)} of its "
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


def attach(db: Connection, lease: str, child: int, process: ProcessIdentity) -> None:
    """Attach a process to a device, in place of any other."""
    db.execute(
        "UPDATE devices SET pid = ?, start_time = ?, boot_id = ?, pid_namespace = ? "
        "WHERE lease = ? AND child = ?",
        (*process, lease, child),
    )


def detach(db: Connection, lease: str, child: int, process: ProcessIdentity) -> None:
    if get_child(db, lease, child).process == process:
        db.execute(
            "UPDATE devices SET pid = NULL, start_time = NULL, boot_id = NULL, "
            "pid_namespace = NULL WHERE lease = ? AND child = ?",
            (lease, child),
        )


def list_reservations(db: Connection, partition: str | None) -> tuple[Reservation, ...]:
    query = (
        f"{_RESERVATIONS}WHERE ?1 IS NULL OR partition_name = ?1 "
        "ORDER BY leases.since, leases.id, child"
    )
    return select(db, Reservation, query, (partition,))


def get_child(db: Connection, lease: str, child: int) -> Reservation:
    """Return a device that a lease holds, and who is attached to it.

    Raises:
        LeaseEndedError: The lease has ended.
        DeviceError: It holds no such device.
    """
    get_lease(db, lease)
    query = f"{_RESERVATIONS}WHERE lease = ? AND child = ?"
    for reservation in select(db, Reservation, query, (lease, child)):
        return reservation
    partition, number = db.execute(
        "SELECT partition_name, count(*) - 1 FROM devices WHERE lease = ?", (lease,)
    ).fetchone()
    raise DeviceError(
        f"Partition {partition} has no device for instance {child}: the job holds "
        f"{counted(number, 'device')} of it, for instances from 0 on. Start the "
        "job with as many instances as it has."
    )
