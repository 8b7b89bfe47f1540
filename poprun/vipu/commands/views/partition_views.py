"""Partitions as the commands show them: tables, and JSON values.

Times are shown in the time zone of this machine, and in JSON in UTC.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from poprun.vipu.commands.views.text_tables import format_properties, format_table
from poprun.vipu.leases import Lease, Reservation
from poprun.vipu.model import IPUS_PER_MACHINE, Agent, Partition
from poprun.vipu.rules.numbering import machines, positions

# By partition: the leases that hold devices of it, the oldest first.
Holders = Mapping[str, Sequence[Lease]]
# By the number of the IPU-Machine in its cluster.
AgentNames = Mapping[int, str]

_HEADER = (
    "Partition",
    "Cluster",
    "ILDs",
    "GW Routing",
    "ILD Routing",
    "Size",
    "GCDs",
    "State",
)
# The original's first column has room for the names that sites use.
_WIDTHS = (11, 8, 4, 10, 11, 4, 4, 6)
_HOLDER_HEADER = ("User", "Job", "Host", "PID", "Since")


def holders_of(reservations: Sequence[Reservation]) -> Holders:
    """Return which leases hold devices of each partition."""
    found: dict[str, dict[str, Lease]] = {}
    for reservation in reservations:
        leases = found.setdefault(reservation.partition, {})
        leases[reservation.lease.id] = reservation.lease
    return {partition: tuple(leases.values()) for partition, leases in found.items()}


def partition_table(
    partitions: Sequence[Partition],
    *,
    for_admin: bool = False,
    holders: Holders | None = None,
) -> str:
    """Return the table of `list partitions`.

    Args:
        partitions: What to list.
        for_admin: Whether allocation and owner come first. Scripts for SDK 2.5 and
            later read the name of the partition from the third column.
        holders: Who holds devices, for columns at the end, one line for each.
    """
    first = ("Allocation", "Owner") if for_admin else ()
    header = (*first, *_HEADER, *(() if holders is None else _HOLDER_HEADER))
    rows = []
    for partition in partitions:
        cells = (
            *((partition.allocation, partition.owner or "-") if for_admin else ()),
            partition.name,
            partition.cluster,
            str(partition.num_ilds),
            partition.gateway_routing.name,
            partition.link_routing.name,
            str(partition.size),
            str(partition.num_gcds),
            partition.state.name,
        )
        if holders is None:
            rows.append(cells)
            continue
        leases = holders.get(partition.name, ())
        if not leases:
            rows.append((*cells, *("-",) * len(_HOLDER_HEADER)))
        for number, lease in enumerate(leases):
            shown = cells if number == 0 else ("",) * len(cells)
            rows.append((*shown, *holder_cells(lease)))
    return format_table(header, rows, widths=(0,) * len(first) + _WIDTHS)


def names_by_machine(agents: Sequence[Agent]) -> AgentNames:
    """Return the names of the agents of one cluster."""
    return {agent.machine: agent.name for agent in agents if agent.machine is not None}


def partition_properties(
    partition: Partition, holders: Holders, names: AgentNames
) -> str:
    """Return the tables of `get partition`: what it is, and who holds devices of it."""
    used = [names.get(number, f"machine {number}") for number in machines(partition)]
    pairs = [
        ("Partition ID", partition.name),
        ("State", partition.state.name),
        *([("Reason", partition.reason)] if partition.reason else []),
        ("Owner", partition.owner or "-"),
        ("Cluster", partition.cluster),
        ("Allocation", partition.allocation),
        ("Size", str(partition.size)),
        ("ILDs", str(partition.num_ilds)),
        ("GCDs", str(partition.num_gcds)),
        ("IPUs per GCD", str(partition.gcd_size)),
        ("Replicas", str(partition.num_replicas)),
        ("Reconfigurable", "yes" if partition.reconfigurable else "no"),
        ("ILD Routing", partition.link_routing.name),
        ("GW Routing", partition.gateway_routing.name),
        ("Sync Type", partition.sync_type.value),
        ("Agents", " ".join(used)),
        ("Created", local_time(partition.created)),
        ("Removed with", "its job" if partition.lease else "vipu remove partition"),
    ]
    leases = holders.get(partition.name, ())
    if not leases:
        return format_properties([*pairs, ("In use by", "-")])
    rows = [holder_cells(lease) for lease in leases]
    return format_properties(pairs) + format_table(_HOLDER_HEADER, rows)


def partition_value(
    partition: Partition, holders: Holders, names: AgentNames
) -> dict[str, Any]:
    """Return a partition for JSON, in the shape of the original's `--showjson`."""
    value = {
        "id": partition.name,
        "spec": {
            "size": partition.size,
            "ipus": ipu_names(positions(partition), names),
            "num_ilds": partition.num_ilds,
            "num_gcds": partition.num_gcds,
            "ipus_per_gcd": partition.gcd_size,
            "num_replicas": partition.num_replicas,
            "reconfigurable": partition.reconfigurable,
            "routing": partition.link_routing.name,
            "gw_routing": partition.gateway_routing.name,
            "sync_type": f"ST_{partition.sync_type.name}",
            "cluster": partition.cluster,
            "allocation": partition.allocation,
        },
        "owner": partition.owner,
        "state": partition.state.in_api,
        "reason": partition.reason,
        "created": utc_time(partition.created),
        "removed_with_job": partition.lease is not None,
        "holders": [
            {
                "user": lease.holder.user,
                "job": lease.holder.job,
                "host": lease.holder.host,
                "pid": lease.holder.process.pid,
                "since": utc_time(lease.since),
            }
            for lease in holders.get(partition.name, ())
        ],
    }
    return {"partition": value}


def ipu_names(found: Sequence[int], names: AgentNames) -> list[str]:
    """Return IPUs of a cluster by agent and number in it: ag0:3."""
    return [
        f"{names.get(position // IPUS_PER_MACHINE, '?')}:{position % IPUS_PER_MACHINE}"
        for position in found
    ]


def holder_cells(lease: Lease) -> tuple[str, ...]:
    """Return user, job, host, process and start of a lease."""
    holder = lease.holder
    return (
        holder.user,
        holder.job,
        holder.host,
        str(holder.process.pid),
        local_time(lease.since),
    )


def local_time(seconds: float) -> str:
    """Write a time in the time zone of this machine."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def utc_time(seconds: float) -> str:
    """Write a time for JSON."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
