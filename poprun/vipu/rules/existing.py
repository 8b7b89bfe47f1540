"""Whether a job can use an existing partition, and which change it needs. Pure."""

from dataclasses import asdict
from typing import Any

from poprun.vipu.errors import MismatchError
from poprun.vipu.model import (
    Cluster,
    LinkRouting,
    Partition,
    PartitionChange,
    PartitionRequest,
    SyncType,
)
from poprun.vipu.rules.partition_rules import describe
from poprun.vipu.rules.routing import has_ring
from poprun.words import counted

# The attributes that an update may change, as the log names them.
_NAMES = {
    "size": "size",
    "num_ilds": "ILDs",
    "num_gcds": "GCDs",
    "gcd_size": "IPUs per GCD",
    "num_replicas": "replicas",
    "reconfigurable": "reconfigurable",
    "link_routing": "IPU-Link routing",
    "gateway_routing": "GW-Link routing",
    "sync_type": "sync type",
    "link_topology": "topology",
}
# The attributes that a job may ask for, in the order of refusals.
_COUNTS = ("size", "num_gcds", "num_replicas", "num_ilds")
_CHOICES = ("link_routing", "gateway_routing", "sync_type")


def find_change(
    partition: Partition, request: PartitionRequest, *, update: bool
) -> PartitionChange | None:
    """Return how an existing partition must be changed before a job uses it.

    Args:
        partition: The partition as it is.
        request: The partition that the job needs.
        update: Whether the partition may be changed: --update-partition.

    Raises:
        MismatchError: It must not be changed, but does not fit.
    """
    wishes = _differences(partition, request)
    if wishes and not update:
        parts = [
            f"{_describe(partition, name)} where the job asks for {wish}"
            for name, wish in wishes.items()
        ]
        raise MismatchError(
            f"Partition {describe(partition)} has {' and '.join(parts)}. Let poprun "
            "change the partition with --update-partition=yes, name another with "
            "--vipu-partition, or request the same values."
        )
    if not wishes:
        return None
    if not partition.reconfigurable:
        wishes["num_replicas"] = request.num_replicas
        if "num_gcds" in wishes:
            wishes["gcd_size"] = request.gcd_size or request.size // request.num_gcds
    return PartitionChange(**wishes)


def _differences(partition: Partition, request: PartitionRequest) -> dict[str, Any]:
    """Return the wishes of a job, by name, that a partition does not fulfil.

    A reconfigurable partition serves jobs of any size up to its own, whatever their
    instances and replicas; what the request leaves open is not compared.
    """
    wishes = {name: getattr(request, name) for name in (*_COUNTS, *_CHOICES)}
    if request.link_routing is LinkRouting.DEFAULT:
        del wishes["link_routing"]
    if partition.reconfigurable:
        del wishes["num_gcds"], wishes["num_replicas"]
        wishes["size"] = max(request.size, partition.size)
    # One for each GCD is the default, so it is no wish of the partition's user.
    elif partition.num_replicas == partition.num_gcds:
        del wishes["num_replicas"]
    return {
        name: wish
        for name, wish in wishes.items()
        if wish not in (None, getattr(partition, name))
    }


def _describe(partition: Partition, name: str) -> str:
    value, noun = getattr(partition, name), _NAMES[name]
    if name in _CHOICES:
        return f"{noun} {value}"
    return counted(value, "IPU" if name == "size" else noun.removesuffix("s"))


def changed_request(
    partition: Partition, change: PartitionChange, cluster: Cluster
) -> PartitionRequest:
    """Return the request that would make a partition as it will be after a change.

    Other attributes stay, unless they cannot stay after the change.
    """
    changes = {name: new for name, new in asdict(change).items() if new is not None}
    values = {name: getattr(partition, name) for name in asdict(change)} | changes
    size, num_gcds = values["size"], values["num_gcds"]
    share = size // max(num_gcds, 1)
    if change.num_ilds is None:
        values["num_ilds"] = _kept_num_ilds(partition, size, change.num_gcds, cluster)
    if change.gcd_size is None:
        fills = partition.num_gcds * partition.gcd_size == partition.size
        stays = change.num_gcds is None and not fills
        values["gcd_size"] = min(partition.gcd_size, share) if stays else None
    if change.num_replicas is None:
        replicas = partition.num_replicas
        most = num_gcds * (values["gcd_size"] or share)
        fits = replicas <= most and replicas % max(num_gcds, 1) == 0
        values["num_replicas"] = replicas if fits else num_gcds
    if change.link_routing is None:
        ild_share = size // max(values["num_ilds"], 1)
        values["link_routing"] = _kept_routing(partition, cluster, ild_share)
    if change.sync_type is None and values["reconfigurable"]:
        values["sync_type"] = SyncType.C2_COMPATIBLE
    return PartitionRequest(
        name=partition.name,
        allocation=partition.allocation,
        owner=partition.owner,
        **values,
    )


def _kept_num_ilds(
    partition: Partition, size: int, num_gcds: int | None, cluster: Cluster
) -> int:
    """Return the ILDs of a partition, or the nearest number that a change allows.

    Args:
        num_gcds: How many GCDs the change asks for; None for as many as there are.
    """
    most = size if num_gcds is None else min(size, num_gcds)
    power_of_two = 1 << max(most, 1).bit_length() - 1
    return max(min(partition.num_ilds, power_of_two), -(-size // cluster.ild_size))


def _kept_routing(
    partition: Partition, cluster: Cluster, ild_share: int
) -> LinkRouting | None:
    """Return the routing of a partition; None if it loses the ring that it follows."""
    had_ring = has_ring(cluster, partition.blocks[0].size)
    is_lost = had_ring and not has_ring(cluster, ild_share)
    routing = partition.link_routing
    return None if is_lost and routing is LinkRouting.RINGSWNC else routing


def describe_update(before: Partition, after: Partition) -> str:
    """Return what an update has changed: `size 8 to 16, GCDs 2 to 4`; "" if nothing."""
    parts = []
    for attribute, name in _NAMES.items():
        old, new = getattr(before, attribute), getattr(after, attribute)
        if attribute == "reconfigurable":
            old, new = ("yes" if value else "no" for value in (old, new))
        if old != new:
            parts.append(f"{name} {old} to {new}")
    return ", ".join(parts)
