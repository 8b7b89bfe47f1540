"""Partitions in the database."""

from typing import Any

from poprun.vipu.errors import UnknownNameError
from poprun.vipu.inventory.sqlite import Connection
from poprun.vipu.inventory.tables.cluster_store import agents_in_trouble
from poprun.vipu.inventory.tables.free_blocks import StoredFreeBlocks
from poprun.vipu.inventory.tables.names import MOST_LISTED, list_of
from poprun.vipu.model import (
    AgentStatus,
    Block,
    GatewayRouting,
    LinkRouting,
    LinkTopology,
    Partition,
    PartitionState,
    SyncType,
)
from poprun.vipu.rules import buddy

_COLUMNS = (
    "name, cluster, allocation, owner, num_gcds, gcd_size, num_replicas, "
    "reconfigurable, link_routing, gateway_routing, sync_type, link_topology, state, "
    "reason, created, lease, generation, first, ild_share, num_ilds, cluster_ild_size"
)
_SELECT = f"SELECT {_COLUMNS} FROM partitions "
# What `may_see` says, for many.
_SEEN = (
    "WHERE ?1 IS NULL OR owner = ?1 OR allocation IN "
    "(SELECT allocation FROM allocation_users WHERE user = ?1) "
)


def find_partition(db: Connection, name: str) -> Partition | None:
    row = db.execute(_SELECT + "WHERE name = ?", (name,)).fetchone()
    return None if row is None else _partition(row)


def may_see(db: Connection, partition: Partition, user: str | None) -> bool:
    """Return whether a user sees a partition: their own, or of their allocations.

    The users of an allocation share its partitions.
    """
    if user in (None, partition.owner):
        return True
    return (
        db.execute(
            "SELECT 1 FROM allocation_users WHERE allocation = ? AND user = ?",
            (partition.allocation, user),
        ).fetchone()
        is not None
    )


def get_partition(db: Connection, name: str, user: str | None) -> Partition:
    """Return a partition, if a user may see it; None for a user who may see all."""
    found = find_partition(db, name)
    if found is None or not may_see(db, found, user):
        rows = db.execute(
            f"SELECT name FROM partitions {_SEEN}ORDER BY created, name LIMIT "
            f"{MOST_LISTED + 1}",
            (user,),
        ).fetchall()
        names = [row[0] for row in rows]
        raise UnknownNameError(
            f"There is no partition {name[:64]!r}. {list_of('partitions', names)}"
        )
    return found


def list_partitions(db: Connection, user: str | None) -> tuple[Partition, ...]:
    rows = db.execute(_SELECT + _SEEN + "ORDER BY created, name", (user,)).fetchall()
    return tuple(map(_partition, rows))


def insert_partition(db: Connection, partition: Partition) -> None:
    """Store a partition whose blocks have been taken."""
    values = (
        partition.name,
        partition.cluster,
        partition.allocation,
        partition.owner,
        partition.num_gcds,
        partition.gcd_size,
        partition.num_replicas,
        partition.reconfigurable,
        partition.link_routing,
        partition.gateway_routing,
        partition.sync_type,
        partition.link_topology,
        partition.state,
        partition.reason,
        partition.created,
        partition.lease,
        partition.generation,
        partition.blocks[0].first,
        partition.blocks[0].size,
        partition.num_ilds,
        partition.cluster_ild_size,
    )
    marks = ", ".join("?" * len(values))
    db.execute(f"INSERT INTO partitions ({_COLUMNS}) VALUES ({marks})", values)


def replace_partition(db: Connection, partition: Partition) -> None:
    """Store the new values of a partition."""
    db.execute("DELETE FROM partitions WHERE name = ?", (partition.name,))
    insert_partition(db, partition)


def delete_partition(db: Connection, name: str) -> None:
    """Remove a partition that no device is held of, and give its IPUs back."""
    partition = find_partition(db, name)
    if partition is None:
        return
    free_blocks_of(db, partition)
    db.execute("DELETE FROM partitions WHERE name = ?", (name,))


def free_blocks_of(db: Connection, partition: Partition) -> None:
    """Give the IPUs of a partition back."""
    free = StoredFreeBlocks(db, partition.allocation)
    for block in partition.blocks:
        buddy.release(free, block)


def with_state(db: Connection, partition: Partition) -> Partition:
    """Return a partition with the state that its agents bring it to."""
    trouble = agents_in_trouble(db, partition.cluster, partition.blocks)
    down = [agent for agent in trouble if agent.status is AgentStatus.DOWN]
    if not trouble:
        state, reason = PartitionState.ACTIVE, ""
    else:
        state = PartitionState.ERROR if down else PartitionState.PENDING
        agent = (down or trouble)[0]
        what = "is down" if down else "does not answer"
        reason = (
            f"agent {agent.name} ({agent.host}:{agent.port}) {what} until an "
            f"administrator runs: vipu-admin update agent {agent.name} --status up"
        )
    return partition._replace(state=state, reason=reason)


def refresh(db: Connection, partition: Partition) -> Partition:
    """Look again at a partition that is on its way to a state."""
    if partition.state is not PartitionState.PENDING:
        return partition
    found = with_state(db, partition)
    if found != partition:
        replace_partition(db, found)
    return found


def _partition(row: tuple[Any, ...]) -> Partition:
    first, share, num_ilds, stride = map(int, row[17:])
    return Partition(
        name=row[0],
        cluster=row[1],
        allocation=row[2],
        owner=row[3],
        num_gcds=int(row[4]),
        gcd_size=int(row[5]),
        num_replicas=int(row[6]),
        reconfigurable=bool(row[7]),
        link_routing=LinkRouting(row[8]),
        gateway_routing=GatewayRouting(row[9]),
        sync_type=SyncType(row[10]),
        link_topology=LinkTopology(row[11]),
        state=PartitionState(row[12]),
        reason=row[13],
        created=float(row[14]),
        lease=row[15],
        generation=int(row[16]),
        blocks=tuple(Block(first + n * stride, share) for n in range(num_ilds)),
        cluster_ild_size=stride,
    )
