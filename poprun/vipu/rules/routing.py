"""How the IPUs of a partition route and synchronise, and what Poplar hears of it."""

from collections.abc import Mapping
from typing import Any

from poprun.vipu.model import (
    Cluster,
    GatewayRouting,
    LinkRouting,
    LinkTopology,
    Partition,
    PartitionRequest,
    SyncType,
)

_CONFIGURATIONS = {
    LinkRouting.DEFAULT: "default",
    LinkRouting.DNC: "default",
    LinkRouting.SWNC: "slidingWindow",
    LinkRouting.RINGSWNC: "slidingWindow",
    LinkRouting.BTNC: "barleyTwist",
}


def has_ring(cluster: Cluster, ild_share: int) -> bool:
    """Return whether the IPU-Links of a partition are a closed ring.

    Only a whole ILD of a torus has one.
    """
    return cluster.topology is LinkTopology.TORUS and ild_share == cluster.ild_size


def choose_links(
    request: PartitionRequest, cluster: Cluster, ild_share: int
) -> dict[str, Any]:
    """Return the routing, synchronisation and topology of a partition.

    The default routing is RINGSWNC where there is a ring, and DNC elsewhere.

    Args:
        request: The partition to be made.
        cluster: Where the partition will be.
        ild_share: How many IPUs of each ILD it will have.
    """
    ring = has_ring(cluster, ild_share)
    routing = request.link_routing or LinkRouting.DEFAULT
    if routing is LinkRouting.DEFAULT:
        routing = LinkRouting.RINGSWNC if ring else LinkRouting.DNC
    sync_type = request.sync_type or SyncType.POD_NATIVE_DEFAULT
    if request.reconfigurable:
        sync_type = SyncType.C2_COMPATIBLE
    return {
        "link_routing": routing,
        "gateway_routing": request.gateway_routing or GatewayRouting.DEFAULT,
        "sync_type": sync_type,
        "link_topology": LinkTopology.TORUS if ring else LinkTopology.MESH,
    }


def partition_target_options(
    partition: Partition, num_instances: int, num_ipus: int | None = None
) -> dict[str, str]:
    """Return Poplar's target options as V-IPU reports them for a partition.

    Args:
        partition: The partition.
        num_instances: How many instances share it.
        num_ipus: How many of its IPUs the job has; None for all.
    """
    fits = num_instances == partition.num_gcds
    # A part of a reconfigurable partition has no closed ring.
    part = partition.reconfigurable and num_ipus not in (None, partition.size)
    return _target_options(
        partition.size // partition.num_ilds,
        partition.link_routing,
        LinkTopology.MESH if part else partition.link_topology,
        partition.gcd_size if fits else partition.size // num_instances,
    )


def device_target_options(
    partition: Partition, num_ipus: int, num_instances: int
) -> dict[str, str]:
    """Return Poplar's target options as a parent device with `num_ipus` reports them.

    It knows the ILDs of the hardware, not the partition's; it is routed as the
    partition only where it is a whole ILD with a closed ring.
    """
    is_ring = (
        num_ipus == partition.size and partition.link_topology is LinkTopology.TORUS
    )
    return _target_options(
        partition.cluster_ild_size,
        partition.link_routing if is_ring else LinkRouting.DEFAULT,
        LinkTopology.TORUS if is_ring else LinkTopology.MESH,
        num_ipus // num_instances,
    )


def _target_options(
    ild_size: int, routing: LinkRouting, topology: LinkTopology, instance_size: int
) -> dict[str, str]:
    return {
        "ipuLinkDomainSize": str(ild_size),
        "ipuLinkConfiguration": _CONFIGURATIONS[routing],
        "ipuLinkTopology": topology.value,
        "gatewayMode": "true",
        "instanceSize": str(instance_size),
    }


def describe_device(number: int, options: Mapping[str, str]) -> str:
    """Return the line that poprun logs of a parent device."""
    names = ("ipuLinkConfiguration", "ipuLinkTopology")
    text = ", ".join(
        f"{name}={value[:1].upper() + value[1:] if name in names else value}"
        for name, value in options.items()
    )
    return f"Device {number} {text}"
