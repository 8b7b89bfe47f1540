"""Make and change partitions: choose where, take the IPUs, store the partition."""

import time
from dataclasses import replace

from poprun.vipu import errors
from poprun.vipu.inventory import leases, machines, partitions, users
from poprun.vipu.inventory.transaction import Transaction, listed
from poprun.vipu.model import (
    Block,
    Cluster,
    Partition,
    PartitionChange,
    PartitionRequest,
)
from poprun.vipu.rules import partition_rules
from poprun.vipu.rules.existing import changed_request
from poprun.vipu.rules.free_ipus import bits_of, find_blocks, largest_block
from poprun.vipu.rules.partition_rules import describe
from poprun.words import counted

# Where a partition may be: allocations, each with its cluster.
Places = list[tuple[str, Cluster]]


def create_partition(db: Transaction, request: PartitionRequest) -> Partition:
    """Make a partition that stays until it is removed.

    It is not reset afterwards. Its state is ACTIVE if all agents are up.

    Raises:
        NameTakenError: There is one of this name.
        NoSpaceError: There are not enough free IPUs next to each other.
        VipuRuleError: No cluster could ever have it.
    """
    return make_partition(db, request, None)


def make_partition(
    db: Transaction, request: PartitionRequest, lease: str | None
) -> Partition:
    """Make a partition in the first allocation that has room.

    Args:
        lease: The lease that it goes with, if any.
    """
    partition_rules.check_alone(request, strict=db.strict)
    existing = partitions.find_partition(db, request.name)
    if existing is not None:
        raise errors.NameTakenError(
            f"Partition {describe(existing)} of user {existing.owner} already exists. "
            "Choose another name, or remove it with: vipu remove partition "
            f"{request.name}"
        )
    placed = _place(db, request)
    partition = partitions.with_state(db, placed, lease=lease, created=time.time())
    partitions.insert_partition(db, partition)
    return partition


def update_partition(
    db: Transaction, name: str, change: PartitionChange, user: str | None = None
) -> Partition:
    """Change a partition, and move it if its size or its ILDs change.

    Raises:
        InUseError: A job holds IPUs of it.
        NoSpaceError: The larger one has no room; the partition stays as it was.
    """
    partition = partitions.get_partition(db, name, user)
    leases.check_unused(db, partition, "updated")
    cluster = machines.get_cluster(db, partition.cluster)
    request = changed_request(partition, change, cluster)
    partition_rules.check_alone(request, strict=db.strict)
    changed = partition_rules.partition_in(request, cluster, strict=db.strict)
    if (changed.size, changed.num_ilds) == (partition.size, partition.num_ilds):
        changed = replace(changed, blocks=partition.blocks)
    else:
        machines.free(db, partition.allocation, bits_of(partition.blocks))
        changed = _place(db, request, besides=name)
    kept = ("allocation", "created", "lease", "generation")
    changed = replace(changed, **{field: getattr(partition, field) for field in kept})
    return _configure(db, changed)


def reset_partition(db: Transaction, name: str, user: str | None = None) -> Partition:
    """Configure a partition anew.

    Raises:
        InUseError: A job holds IPUs of it.
    """
    partition = partitions.get_partition(db, name, user)
    leases.check_unused(db, partition, "reset")
    return _configure(db, partition)


def remove_partition(
    db: Transaction, name: str, user: str | None = None, *, force: bool = False
) -> None:
    """Free the IPUs of a partition; `force` ends the leases that hold some.

    Raises:
        InUseError: A job holds IPUs of it.
    """
    partition = partitions.get_partition(db, name, user)
    if force:
        for lease in leases.leases_on(db, name):
            leases.end_lease(db, lease)
    else:
        leases.check_unused(db, partition, "removed")
    if partitions.find_partition(db, name) is not None:  # it did not go with a lease
        partitions.delete_partition(db, partition)


def _configure(db: Transaction, partition: Partition) -> Partition:
    """Store a partition with its IPUs configured anew."""
    generation = partition.generation + 1
    configured = partitions.with_state(db, partition, generation=generation)
    partitions.store_partition(db, configured)
    return configured


def _place(db: Transaction, request: PartitionRequest, besides: str = "") -> Partition:
    """Take the IPUs of a partition; `besides` is its name if it exists already.

    Raises:
        NoSpaceError: There is a place that is large enough, but not free.
        VipuRuleError: There is none that could ever have it.
    """
    impossible = None
    possible: Places = []
    for allocation, cluster in find_places(db, request):
        try:
            partition = partition_rules.partition_in(request, cluster, strict=db.strict)
        except errors.VipuRuleError as error:
            # The last is kept: it belongs to the largest cluster.
            impossible = error
            continue
        possible.append((allocation, cluster))
        free = machines.get_free_ipus(db, allocation)
        blocks = _find_blocks(free, partition, request.place_index)
        if blocks is not None:
            machines.set_free_ipus(db, allocation, free & ~bits_of(blocks))
            return replace(partition, allocation=allocation, blocks=blocks)
    if not possible and impossible is not None:
        raise impossible
    raise errors.NoSpaceError(_no_space(db, request, possible, besides))


def find_places(db: Transaction, request: PartitionRequest) -> Places:
    """Return the allocations that a partition may be in, the largest clusters last."""
    if request.allocation is not None:
        allocation = machines.get_allocation(db, request.allocation)
        users.check_use(db, allocation, request.owner)
        return [(allocation.name, machines.get_cluster(db, allocation.cluster))]
    if request.cluster is not None:
        possible = [machines.get_cluster(db, request.cluster)]
    else:
        possible = sorted(machines.list_clusters(db), key=lambda cluster: cluster.size)
        if not possible:
            raise errors.NoSpaceError(
                f"Partition {request.name} cannot be created, because there is no "
                "cluster. Create one with: vipu-admin create cluster"
            )
    places: Places = []
    limited = users.is_limited(db, request.owner)
    for cluster in possible:
        query = "SELECT name FROM allocations WHERE cluster = ? ORDER BY rowid"
        for name in db.column(query, cluster.name):
            is_open = name == cluster.name and not limited
            # Allocations of their own are for their users, and for jobs that name them.
            if is_open or request.owner in users.users_of(db, name):
                places.append((name, cluster))
    if not places:
        where = f" of cluster {request.cluster}" if request.cluster else ""
        raise errors.AccessError(
            f"User {request.owner} may use no allocation{where}. Ask the administrator "
            "for one: vipu-admin create user NAME --allocations NAMES."
        )
    return places


def _find_blocks(
    free: int, partition: Partition, index: int | None
) -> tuple[Block, ...] | None:
    """Find free IPUs for a partition, at an index if there is one."""
    ild_size, num_ilds = partition.cluster_ild_size, partition.num_ilds
    share = partition.blocks[0].size
    if index is None:
        return find_blocks(free, share, num_ilds, ild_size)
    row, place = divmod(index, ild_size // share)
    first = row * num_ilds * ild_size + place * share
    blocks = tuple(
        Block(first=first + n * ild_size, size=share) for n in range(num_ilds)
    )
    return None if bits_of(blocks) & ~free else blocks


def _no_space(
    db: Transaction, request: PartitionRequest, places: Places, besides: str
) -> str:
    parts = [_room_in(db, allocation, cluster) for allocation, cluster in places]
    needs = ""
    if request.num_ilds is not None and request.num_ilds > 1:
        share = request.size // request.num_ilds
        needs = f", {share} in the same place of each of {request.num_ilds} ILDs"
    elif request.size > 1:
        needs = " next to each other"
    if request.place_index is not None:
        needs += f" at index {request.place_index}"
    names = [allocation for allocation, _ in places]
    in_use = leases.describe_users_of(db, names, besides)
    return (
        f"There is no room for partition {request.name} of "
        f"{counted(request.size, 'IPU')}{needs}: {'; '.join(parts)}. {in_use}"
        "Wait until some are free, ask for fewer, or name another cluster or "
        "allocation."
    )


def _room_in(db: Transaction, allocation: str, cluster: Cluster) -> str:
    """Say how much of an allocation is free."""
    name = cluster.name
    place = f"cluster {name}" if allocation == name else f"allocation {allocation}"
    total = machines.count_ipus(db, allocation)
    if not total:
        query = "SELECT DISTINCT allocation FROM agents WHERE cluster = ? ORDER BY 1"
        others = listed(db.column(query, name))
        return f"all agents of {place} are in other allocations: {others}"
    free = machines.get_free_ipus(db, allocation)
    if not free:
        return f"all {counted(total, 'IPU')} of {place} are in use"
    return (
        f"{place} has {free.bit_count()} of {counted(total, 'IPU')} free, at most "
        f"{largest_block(free)} of them next to each other"
    )
