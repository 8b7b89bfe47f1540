"""The rules of partitions: what can be made, and whether an existing one will do. Pure.

Strict rules are the rules of the original; a server keeps them. An embedded inventory
is more generous: it makes a partition for any job that poprun runs without IPUs.
"""

from poprun.vipu import model
from poprun.vipu.errors import VipuRuleError
from poprun.vipu.model import PartitionRequest
from poprun.vipu.rules.checks import check_name
from poprun.vipu.rules.routing import choose_links
from poprun.words import counted

MOST_IPUS = model.MOST_ILDS * model.LARGEST_ILD


def check_alone(request: PartitionRequest, *, strict: bool) -> None:
    """Check what holds for a partition in any cluster.

    Raises:
        VipuRuleError: No inventory could make it.
    """
    name, size, gcds = request.name, request.size, request.num_gcds
    check_name("partition", name)
    if request.allocation is not None and request.cluster is not None:
        raise VipuRuleError(
            f"Partition {name} is asked for in allocation {request.allocation} and in "
            f"cluster {request.cluster}. Give one of them."
        )
    if not 1 <= size <= MOST_IPUS or not model.is_power_of_two(size):
        raise VipuRuleError(
            f"Partition {name} would have {size} IPUs, but a partition has a power of "
            f"two, up to {MOST_IPUS}. Ask for {_nearest_sizes(size)}."
        )
    gcd_size = request.gcd_size or size // max(gcds, 1)
    if gcds < 1 or gcd_size < 1 or gcds * gcd_size > size:
        raise VipuRuleError(
            f"Partition {name} of {size} IPUs cannot have {gcds} GCDs"
            + (f" of {gcd_size} IPUs" if request.gcd_size else "")
            + f". Ask for 1 to {size // max(request.gcd_size or 1, 1)} GCDs."
        )
    is_uneven = request.gcd_size is None and size % gcds
    fills = gcds * gcd_size == size and model.is_power_of_two(gcds)
    if is_uneven or (strict and not fills):
        raise VipuRuleError(
            f"Partition {name} of {size} IPUs cannot be divided equally into {gcds} "
            "GCDs. Ask for a power of two of them."
        )
    _check_replicas(request, gcds * gcd_size)
    _check_links(request)
    if strict:
        _check_strictly(request)


def _check_links(request: PartitionRequest) -> None:
    """Check the ILDs of a partition, and how its IPUs synchronise."""
    name, size = request.name, request.size
    if request.num_ilds is not None and (
        not model.is_power_of_two(request.num_ilds) or request.num_ilds > size
    ):
        raise VipuRuleError(
            f"Partition {name} of {size} IPUs cannot be divided into "
            f"{request.num_ilds} ILDs: their number must be a power of two, and each "
            f"has at least one IPU."
        )
    # At an index V-IPU makes it without the sync type that it cannot have.
    if (
        request.reconfigurable
        and request.place_index is None
        and request.sync_type not in (None, model.SyncType.C2_COMPATIBLE)
    ):
        raise VipuRuleError(
            f"Partition {name} would be reconfigurable with sync type "
            f"{request.sync_type}, but a reconfigurable partition has "
            f"{model.SyncType.C2_COMPATIBLE}. Leave the sync type out, or make the "
            "partition not reconfigurable."
        )


def _check_replicas(request: PartitionRequest, num_ipus: int) -> None:
    """Check that each GCD has the same number of replicas, and IPUs for each of them.

    Args:
        request: The partition to be made.
        num_ipus: How many IPUs are in all GCDs.
    """
    gcds, replicas = request.num_gcds, request.num_replicas
    if replicas is None:
        return
    if replicas < 1:
        raise VipuRuleError(
            f"Partition {request.name} would have {replicas} replicas, but must "
            "have 1 or more."
        )
    if replicas % gcds or replicas > num_ipus:
        if num_ipus == gcds:
            possible = str(gcds)
        elif gcds == 1:
            possible = f"1 to {num_ipus}"
        else:
            possible = f"a multiple of {gcds}, up to {num_ipus}"
        raise VipuRuleError(
            f"Partition {request.name} of {counted(request.size, 'IPU')} cannot have "
            f"{counted(replicas, 'replica')} in {counted(gcds, 'GCD')}: each GCD has "
            "the same number of them, and each of them 1 IPU or more. Ask for "
            f"{possible}."
        )


def _check_strictly(request: PartitionRequest) -> None:
    name, gcds = request.name, request.num_gcds
    if request.reconfigurable and gcds > 1:
        raise VipuRuleError(
            f"Partition {name} would be reconfigurable with {gcds} GCDs, but a "
            "reconfigurable partition has one. Leave the GCDs out, or make the "
            "partition not reconfigurable."
        )
    if request.num_ilds is not None and gcds < request.num_ilds:
        raise VipuRuleError(
            f"Partition {name} would have {counted(gcds, 'GCD')} in "
            f"{request.num_ilds} ILDs, but a GCD is within one ILD. Ask for "
            f"{request.num_ilds} or more GCDs: a job has one for each instance."
        )


def partition_in(
    request: PartitionRequest, cluster: model.Cluster, *, strict: bool
) -> model.Partition:
    """Return a partition as it is made at the first place of a cluster.

    Raises:
        VipuRuleError: The cluster could not have it even when nothing else was there.
    """
    ild, gcds, replicas = cluster.ild_size, request.num_gcds, request.num_replicas
    ilds = request.num_ilds or -(-request.size // ild)
    _check_room(request, cluster, ilds)
    if strict and ilds > 1 and (gcds < ilds or request.reconfigurable):
        raise VipuRuleError(
            f"Partition {request.name} of {request.size} IPUs spans {ilds} ILDs of "
            f"cluster {cluster.name}, so it needs {ilds} or more GCDs, and cannot be "
            "reconfigurable. Ask for as many: a job has one for each instance."
        )
    share = request.size // ilds
    return model.Partition(
        name=request.name,
        cluster=cluster.name,
        allocation=request.allocation or cluster.name,
        owner=request.owner,
        num_gcds=gcds,
        gcd_size=request.gcd_size or request.size // gcds,
        num_replicas=gcds if replicas is None else replicas,
        reconfigurable=request.reconfigurable,
        **choose_links(request, cluster, share),
        blocks=tuple(model.Block(first=n * ild, size=share) for n in range(ilds)),
        cluster_ild_size=ild,
    )


def _check_room(request: PartitionRequest, cluster: model.Cluster, ilds: int) -> None:
    """Check that an empty cluster has room for a partition in some ILDs."""
    size, ild = request.size, cluster.ild_size
    if size > cluster.size:
        raise VipuRuleError(
            f"Partition {request.name} would have {size} IPUs, but cluster "
            f"{cluster.name} has {cluster.size}. Ask for fewer, or name a larger "
            "cluster."
        )
    if ilds > cluster.num_ilds:
        raise VipuRuleError(
            f"Partition {request.name} would span {ilds} ILDs, but cluster "
            f"{cluster.name} has {cluster.num_ilds} of {ild} IPUs. Ask for "
            f"{cluster.num_ilds} or fewer with --num-ilds, or name another cluster."
        )
    if size // ilds > ild:
        raise VipuRuleError(
            f"Partition {request.name} would have {size // ilds} IPUs in each ILD, but "
            f"the ILDs of cluster {cluster.name} have {ild}. Ask for {-(-size // ild)} "
            "ILDs with --num-ilds, or leave that out."
        )
    places = cluster.num_ilds // ilds * (ild // (size // ilds))
    if request.place_index is not None and not 0 <= request.place_index < places:
        raise VipuRuleError(
            f"Partition {request.name} of {counted(size, 'IPU')} would be at index "
            f"{request.place_index}, but cluster {cluster.name} has "
            f"{counted(places, 'place')} for it. Give an index from 0 to "
            f"{places - 1}, or leave it out."
        )


def request_for_job(
    name: str,
    *,
    num_replicas: int,
    ipus_per_replica: int,
    num_instances: int,
    num_ilds: int | None = None,
    strict: bool,
) -> PartitionRequest:
    """Return the partition that a job needs: a GCD for each instance.

    With strict rules the job's IPUs must be a power of two; otherwise it gets the next
    larger partition, and some IPUs stay idle.

    Raises:
        VipuRuleError: The rules are strict, and the job's IPUs are no power of two.
    """
    num_ipus = num_replicas * ipus_per_replica
    if strict and not model.is_power_of_two(num_ipus):
        raise VipuRuleError(
            f"{num_replicas} replicas of {ipus_per_replica} IPUs each need {num_ipus} "
            "IPUs, but a partition has a power of two. Ask for replicas and IPUs per "
            f"replica that make {_nearest_sizes(num_ipus)} IPUs."
        )
    if not strict and num_ilds is not None:
        num_ilds = model.next_power_of_two(num_ilds)
    size = max(model.next_power_of_two(num_ipus), 1 if strict else num_ilds or 1)
    share = num_ipus // num_instances
    return PartitionRequest(
        name=name,
        size=size,
        num_gcds=num_instances,
        gcd_size=None if share * num_instances == size else share,
        num_replicas=num_replicas,
        num_ilds=num_ilds,
    )


def describe(partition: model.Partition) -> str:
    """Describe a partition for a refusal: `P8 (ACTIVE, 8 IPUs, 2 GCDs, 8 replicas)`."""
    kind = "reconfigurable, " if partition.reconfigurable else ""
    return (
        f"{partition.name} ({partition.state.name}, {kind}"
        f"{counted(partition.size, 'IPU')}, {counted(partition.num_gcds, 'GCD')}, "
        f"{counted(partition.num_replicas, 'replica')})"
    )


def _nearest_sizes(size: int) -> str:
    if size < 1:
        return "1"
    above = model.next_power_of_two(size)
    if above > MOST_IPUS:
        return str(MOST_IPUS)
    return str(above) if above == size else f"{above // 2} or {above}"
