"""Whether a job can use a partition that exists, and what must be done first. Pure."""

from typing import NamedTuple

from poprun.vipu.model import LinkRouting, Partition
from poprun.vipu.requests import PartitionChange, PartitionRequest
from poprun.vipu.rules.partition_rules import counted, describe
from poprun.vipu.vipu_errors import MismatchError


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
        if replicas is not None and partition.num_replicas != replicas:
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
    return Preparation(
        change=change, reset=not partition.reconfigurable if reset is None else reset
    )


def changed_request(partition: Partition, change: PartitionChange) -> PartitionRequest:
    """Return the request that would make a partition as it will be after a change.

    What the change leaves open stays, unless it followed from what is changed.
    """
    resized = change.size is not None or change.num_ilds is not None
    kind = change.reconfigurable
    rerouted = resized or kind is not None
    gcd_size = change.gcd_size
    if gcd_size is None and change.size is None and change.num_gcds is None:
        gcd_size = partition.gcd_size
    num_gcds = change.num_gcds or partition.num_gcds
    replicas = change.num_replicas
    if replicas is None and change.num_gcds is None:
        replicas = partition.num_replicas
    return PartitionRequest(
        name=partition.name,
        size=change.size or partition.size,
        num_gcds=num_gcds,
        gcd_size=gcd_size,
        num_replicas=replicas,
        num_ilds=change.num_ilds or (None if resized else partition.num_ilds),
        reconfigurable=partition.reconfigurable if kind is None else kind,
        link_routing=change.link_routing
        or (None if rerouted else partition.link_routing),
        gateway_routing=change.gateway_routing or partition.gateway_routing,
        sync_type=change.sync_type
        or (None if kind is not None else partition.sync_type),
        allocation=partition.allocation,
        owner=partition.owner,
    )


def _merge(changes: list[PartitionChange]) -> PartitionChange:
    merged = PartitionChange()
    for change in changes:
        for name in PartitionChange._fields:
            value = getattr(change, name)
            if value is not None:
                merged = merged._replace(**{name: value})
    return merged
