"""Make and change partitions: choose where, take the IPUs, store the partition."""

import time

from poprun.vipu import errors
from poprun.vipu.inventory.rows import Transaction
from poprun.vipu.inventory.tables.allocations import (
    check_use,
    count_ipus,
    get_allocation,
    get_free_ipus,
    get_users,
    is_limited,
    set_free_ipus,
)
from poprun.vipu.inventory.tables.clusters import get_cluster, list_clusters
from poprun.vipu.inventory.tables.devices import (
    check_unused,
    list_reservations,
    release_devices,
)
from poprun.vipu.inventory.tables.leases import end_lease
from poprun.vipu.inventory.tables.names import listed
from poprun.vipu.inventory.tables.occupants import describe_users_of
from poprun.vipu.inventory.tables.partitions import (
    delete_partition,
    find_partition,
    free_ipus_of,
    get_partition,
    insert_partition,
    replace_partition,
    with_state,
)
from poprun.vipu.model import Block, Cluster, Partition, PartitionState
from poprun.vipu.requests import PartitionChange, PartitionRequest
from poprun.vipu.rules import free_ipus, partition_rules, routing
from poprun.vipu.rules.existing import changed_request
from poprun.vipu.rules.partition_rules import Shape
from poprun.words import counted

# Where a partition may be: allocations, each with its cluster.
Places = list[tuple[str, Cluster]]


def create_partition(
    db: Transaction, request: PartitionRequest, lease: str | None = None
) -> Partition:
    """Make a partition in the first allocation that has room."""
    partition_rules.check_alone(request, strict=db.strict)
    existing = find_partition(db, request.name)
    if existing is not None:
        raise errors.NameTakenError(
            f"There is partition {partition_rules.describe(existing)} already, of user "
            f"{existing.owner}. Choose another name, or remove it with: vipu remove "
            f"partition {request.name}"
        )
    partition = _place(db, request)
    partition = with_state(db, partition._replace(lease=lease, created=time.time()))
    insert_partition(db, partition)
    return partition


def update_partition(
    db: Transaction,
    name: str,
    change: PartitionChange,
    user: str | None,
    lease: str | None,
) -> Partition:
    """Change a partition; it moves only if its size or its ILDs change."""
    partition = get_partition(db, name, user)
    check_unused(db, partition, "updated", lease)
    cluster = get_cluster(db, partition.cluster)
    request = changed_request(partition, change, cluster)
    partition_rules.check_alone(request, strict=db.strict)
    shape = partition_rules.shape_in(request, cluster, strict=db.strict)
    if (shape.num_ilds, shape.ild_share) == (
        partition.num_ilds,
        partition.blocks[0].size,
    ):
        changed = _partition(
            request, shape, cluster, partition.allocation, partition.blocks
        )
    else:
        free_ipus_of(db, partition)
        changed = _place(db, request, own=name)
    changed = changed._replace(created=partition.created, lease=partition.lease)
    return _configured(db, changed, partition.generation + 1)


def reset_partition(
    db: Transaction, name: str, user: str | None, lease: str | None
) -> Partition:
    """Configure the IPUs of a partition anew."""
    partition = get_partition(db, name, user)
    check_unused(db, partition, "reset", lease)
    return _configured(db, partition, partition.generation + 1)


def remove_partition(
    db: Transaction, name: str, user: str | None, lease: str | None, force: bool
) -> None:
    """Remove a partition; `force` ends the leases that hold devices of it."""
    partition = get_partition(db, name, user)
    if force:
        for reservation in list_reservations(db, name):
            end_lease(db, reservation.lease.id)
    else:
        check_unused(db, partition, "removed", lease)
        release_devices(db, name)
    delete_partition(db, name)


def _configured(db: Transaction, partition: Partition, generation: int) -> Partition:
    """Store a partition whose IPUs have been configured anew."""
    configured = with_state(db, partition._replace(generation=generation))
    replace_partition(db, configured)
    return configured


def _place(db: Transaction, request: PartitionRequest, own: str = "") -> Partition:
    """Take the IPUs of a partition.

    Raises:
        NoSpaceError: There is a place that is large enough, but not free.
        VipuRuleError: There is none that could ever have it.
    """
    impossible = None
    possible: Places = []
    for allocation, cluster in find_places(db, request):
        try:
            shape = partition_rules.shape_in(request, cluster, strict=db.strict)
        except errors.VipuRuleError as error:
            # Of several the last, which is the largest.
            impossible = error
            continue
        possible.append((allocation, cluster))
        free = get_free_ipus(db, allocation)
        blocks = _find_blocks(free, shape, cluster, request.place_index)
        if blocks is not None:
            set_free_ipus(db, allocation, free & ~free_ipus.bits_of(blocks))
            return _partition(request, shape, cluster, allocation, blocks)
    if not possible and impossible is not None:
        raise impossible
    raise errors.NoSpaceError(_no_space(db, request, possible, own))


def find_places(db: Transaction, request: PartitionRequest) -> Places:
    """Return the allocations that a partition may be in, the largest clusters last."""
    if request.allocation is not None:
        allocation = get_allocation(db, request.allocation)
        check_use(db, allocation, request.owner)
        return [(allocation.name, get_cluster(db, allocation.cluster))]
    if request.cluster is not None:
        clusters = [get_cluster(db, request.cluster)]
    else:
        clusters = sorted(list_clusters(db), key=lambda cluster: cluster.size)
        if not clusters:
            raise errors.NoSpaceError(
                f"Partition {request.name} cannot be made, because there is no "
                "cluster. Make one with: vipu-admin create cluster"
            )
    places: Places = []
    limited = is_limited(db, request.owner)
    for cluster in clusters:
        query = "SELECT name FROM allocations WHERE cluster = ? ORDER BY rowid"
        for name in db.column(query, cluster.name):
            users = get_users(db, name)
            # Agents set apart are for those who name them, or whom they are for.
            if (name == cluster.name and not limited) or request.owner in users:
                places.append((name, cluster))
    if not places:
        where = f" of cluster {request.cluster}" if request.cluster else ""
        raise errors.AccessError(
            f"User {request.owner} may use no allocation{where}. Ask the administrator "
            "for one: vipu-admin create user NAME --allocations NAMES."
        )
    return places


def _find_blocks(
    free: int, shape: Shape, cluster: Cluster, index: int | None
) -> tuple[Block, ...] | None:
    """Find free IPUs for a partition, at an index if there is one."""
    share, num_ilds, ild_size = shape.ild_share, shape.num_ilds, cluster.ild_size
    if index is None:
        return free_ipus.find_blocks(free, share, num_ilds, ild_size)
    row, place = divmod(index, ild_size // share)
    first = row * num_ilds * ild_size + place * share
    blocks = tuple(Block(first + n * ild_size, share) for n in range(num_ilds))
    return None if free_ipus.bits_of(blocks) & ~free else blocks


def _partition(
    request: PartitionRequest,
    shape: Shape,
    cluster: Cluster,
    allocation: str,
    blocks: tuple[Block, ...],
) -> Partition:
    links = routing.choose_links(request, cluster, shape.ild_share)
    return Partition(
        name=request.name,
        cluster=cluster.name,
        allocation=allocation,
        owner=request.owner,
        num_gcds=request.num_gcds,
        gcd_size=shape.gcd_size,
        num_replicas=shape.num_replicas,
        reconfigurable=request.reconfigurable,
        **links._asdict(),
        blocks=blocks,
        cluster_ild_size=cluster.ild_size,
        state=PartitionState.PENDING,
    )


def _no_space(
    db: Transaction, request: PartitionRequest, places: Places, own: str
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
    users = describe_users_of(db, [allocation for allocation, _ in places], own)
    return (
        f"There is no room for partition {request.name} of "
        f"{counted(request.size, 'IPU')}{needs}: {'; '.join(parts)}. {users}"
        "Wait until some are free, ask for fewer, or name another cluster or "
        "allocation."
    )


def _room_in(db: Transaction, allocation: str, cluster: Cluster) -> str:
    """Say how much of an allocation is free."""
    name = cluster.name
    what = f"cluster {name}" if allocation == name else f"allocation {allocation}"
    total = count_ipus(db, allocation)
    if not total:
        query = (
            "SELECT DISTINCT allocation FROM agents WHERE cluster = ? "
            "ORDER BY allocation"
        )
        others = listed(db.column(query, name))
        return f"all agents of {what} are in other allocations: {others}"
    free = get_free_ipus(db, allocation)
    if not free:
        return f"all {counted(total, 'IPU')} of {what} are in use"
    return (
        f"{what} has {free.bit_count()} of {counted(total, 'IPU')} free, at most "
        f"{free_ipus.largest_block(free)} of them next to each other"
    )
