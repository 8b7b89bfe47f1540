"""Whether a job can use a partition that exists, and what must be done first. Pure."""

from typing import NamedTuple, TypeVar

from poprun.vipu.errors import MismatchError
from poprun.vipu.model import Cluster, LinkRouting, Partition, SyncType
from poprun.vipu.requests import PartitionChange, PartitionRequest
from poprun.vipu.rules.partition_rules import counted, describe
from poprun.vipu.rules.routing import has_ring

T = TypeVar("T")


class Mismatch(NamedTuple):
    """One thing in which a partition differs from what is asked for, in words."""

    has: str
    asked: str
    change: PartitionChange


class Preparation(NamedTuple):
    """What must be done to a partition before the job starts."""

    change: PartitionChange | None
    reset: bool


def differences(
    partition: Partition, request: PartitionRequest
) -> tuple[Mismatch, ...]:
    """Return in what a partition is not as a job asks.

    A reconfigurable partition serves jobs of any size up to its own, whatever their
    instances and replicas; what the request leaves open is not compared.
    """
    found = []
    if not partition.reconfigurable:
        if partition.size != request.size:
            found.append(_sizes(partition, request))
        gcd_size = request.gcd_size or request.size // request.num_gcds
        if partition.num_gcds != request.num_gcds:
            found.append(
                Mismatch(
                    counted(partition.num_gcds, "GCD"),
                    str(request.num_gcds),
                    PartitionChange(num_gcds=request.num_gcds, gcd_size=gcd_size),
                )
            )
        replicas = request.num_replicas
        # One for each GCD is the default, so it is no wish of the partition's user.
        is_default = partition.num_replicas == partition.num_gcds
        if replicas not in (None, partition.num_replicas) and not is_default:
            found.append(
                Mismatch(
                    counted(partition.num_replicas, "replica"),
                    str(replicas),
                    PartitionChange(num_replicas=replicas),
                )
            )
    elif partition.size < request.size:
        found.append(_sizes(partition, request))
    if request.num_ilds is not None and partition.num_ilds != request.num_ilds:
        found.append(
            Mismatch(
                counted(partition.num_ilds, "ILD"),
                str(request.num_ilds),
                PartitionChange(num_ilds=request.num_ilds),
            )
        )
    return (*found, *_link_differences(partition, request))


def _sizes(partition: Partition, request: PartitionRequest) -> Mismatch:
    return Mismatch(
        counted(partition.size, "IPU"),
        str(request.size),
        PartitionChange(size=request.size),
    )


def _link_differences(
    partition: Partition, request: PartitionRequest
) -> list[Mismatch]:
    found = []
    asked_routing = request.link_routing
    if asked_routing not in (None, LinkRouting.DEFAULT, partition.link_routing):
        found.append(
            Mismatch(
                f"IPU-Link routing {partition.link_routing}",
                str(asked_routing),
                PartitionChange(link_routing=asked_routing),
            )
        )
    if request.gateway_routing not in (None, partition.gateway_routing):
        found.append(
            Mismatch(
                f"GW-Link routing {partition.gateway_routing}",
                str(request.gateway_routing),
                PartitionChange(gateway_routing=request.gateway_routing),
            )
        )
    if request.sync_type not in (None, partition.sync_type):
        found.append(
            Mismatch(
                f"sync type {partition.sync_type}",
                str(request.sync_type),
                PartitionChange(sync_type=request.sync_type),
            )
        )
    return found


def prepare(
    partition: Partition,
    request: PartitionRequest,
    *,
    update: bool,
    reset: bool | None,
) -> Preparation:
    """Return what must be done to an existing partition before a job uses it.

    Args:
        partition: As it is.
        request: What the job asks for.
        update: Whether the partition may be changed: --update-partition.
        reset: --reset-partition; None to reset it unless it is reconfigurable.

    Raises:
        MismatchError: It must not be changed, but does not fit.
    """
    found = differences(partition, request)
    if found and not update:
        parts = [f"{m.has} where the job asks for {m.asked}" for m in found]
        raise MismatchError(
            f"Partition {describe(partition)} has {' and '.join(parts)}. Let poprun "
            "change the partition with --update-partition=yes, name another with "
            "--vipu-partition, or ask for what it has."
        )
    change = None
    if found:
        change = _merge([mismatch.change for mismatch in found])
        if not partition.reconfigurable and request.num_replicas is not None:
            change = change._replace(num_replicas=request.num_replicas)
    return Preparation(
        change=change, reset=not partition.reconfigurable if reset is None else reset
    )


def changed_request(
    partition: Partition, change: PartitionChange, cluster: Cluster
) -> PartitionRequest:
    """Return the request that would make a partition as it will be after a change.

    What the change leaves open stays, unless it cannot stay with what is changed.
    """
    size = _first(change.size, partition.size)
    num_gcds = _first(change.num_gcds, partition.num_gcds)
    num_ilds = _first(change.num_ilds, _kept_num_ilds(partition, change, cluster))
    equal_share = size // max(num_gcds, 1)
    gcd_size = change.gcd_size
    fills = partition.num_gcds * partition.gcd_size == partition.size
    if gcd_size is None and change.num_gcds is None and not fills:
        gcd_size = min(partition.gcd_size, equal_share)
    most_replicas = num_gcds * _first(gcd_size, equal_share)
    reconfigurable = _first(change.reconfigurable, partition.reconfigurable)
    return PartitionRequest(
        name=partition.name,
        size=size,
        num_gcds=num_gcds,
        gcd_size=gcd_size,
        num_replicas=_first(
            change.num_replicas, _kept_replicas(partition, num_gcds, most_replicas)
        ),
        num_ilds=num_ilds,
        reconfigurable=reconfigurable,
        link_routing=change.link_routing
        or _kept_routing(partition, cluster, size // max(num_ilds, 1)),
        gateway_routing=change.gateway_routing or partition.gateway_routing,
        sync_type=change.sync_type
        or (SyncType.C2_COMPATIBLE if reconfigurable else partition.sync_type),
        allocation=partition.allocation,
        owner=partition.owner,
    )


def _first(changed: T | None, kept: T) -> T:
    return kept if changed is None else changed


def _kept_num_ilds(
    partition: Partition, change: PartitionChange, cluster: Cluster
) -> int:
    """Return the ILDs of a partition, or the nearest number that the change allows."""
    size = most = _first(change.size, partition.size)
    if change.num_gcds is not None:
        most = min(size, change.num_gcds)
    power_of_two = 1 << max(most, 1).bit_length() - 1
    return max(min(partition.num_ilds, power_of_two), -(-size // cluster.ild_size))


def _kept_replicas(partition: Partition, num_gcds: int, most: int) -> int:
    """Return the replicas of a partition, the default if GCDs cannot have these."""
    replicas = partition.num_replicas
    fits = replicas <= most and replicas % max(num_gcds, 1) == 0
    return replicas if fits else num_gcds


def _kept_routing(
    partition: Partition, cluster: Cluster, ild_share: int
) -> LinkRouting | None:
    """Return the routing of a partition; None if it loses the ring that it follows."""
    loses_ring = has_ring(cluster, partition.blocks[0].size) and not has_ring(
        cluster, ild_share
    )
    if loses_ring and partition.link_routing is LinkRouting.RINGSWNC:
        return None
    return partition.link_routing


def describe_update(before: Partition, after: Partition) -> str:
    """Return what an update has changed: `size 8 to 16, GCDs 2 to 4`; "" if nothing."""
    pairs = zip(_properties(before), _properties(after), strict=True)
    return ", ".join(
        f"{name} {old} to {new}" for (name, old), (_, new) in pairs if old != new
    )


def _properties(partition: Partition) -> tuple[tuple[str, str], ...]:
    return (
        ("size", str(partition.size)),
        ("ILDs", str(partition.num_ilds)),
        ("GCDs", str(partition.num_gcds)),
        ("IPUs per GCD", str(partition.gcd_size)),
        ("replicas", str(partition.num_replicas)),
        ("reconfigurable", "yes" if partition.reconfigurable else "no"),
        ("IPU-Link routing", partition.link_routing.value),
        ("GW-Link routing", partition.gateway_routing.value),
        ("sync type", partition.sync_type.value),
        ("topology", partition.link_topology.value),
    )


def _merge(changes: list[PartitionChange]) -> PartitionChange:
    merged = PartitionChange()
    for change in changes:
        for name in PartitionChange._fields:
            value = getattr(change, name)
            if value is not None:
                merged = merged._replace(**{name: value})
    return merged
