"""Partitions in the database."""

from _sqlite3 import Connection
from collections.abc import Sequence
from typing import Any

from poprun.vipu.inventory.tables.allocations import get_free_ipus, set_free_ipus
from poprun.vipu.inventory.tables.clusters import agents_in_trouble
from poprun.vipu.inventory.tables.names import refuse_unknown
from poprun.vipu.inventory.tables.rows import from_row, insert, select_column
from poprun.vipu.model import AgentStatus, Block, Partition, PartitionState
from poprun.vipu.rules.free_ipus import bits_of

# Where its first block is, how large each is, and how many there are, stand for all.
_BLOCKS = Partition._fields.index("blocks")
_OTHER_FIELDS = (*Partition._fields[:_BLOCKS], *Partition._fields[_BLOCKS + 1 :])
_COLUMNS = ", ".join(("first", "ild_share", "num_ilds", *_OTHER_FIELDS))
# What `may_see` says, for many.
_SEEN = (
    "WHERE ?1 IS NULL OR owner = ?1 OR allocation IN "
    "(SELECT allocation FROM allocation_users WHERE user = ?1) ORDER BY created, name"
)


def find_partition(db: Connection, name: str) -> Partition | None:
    partitions = _select(db, "WHERE name = ?", name)
    return partitions[0] if partitions else None


def may_see(db: Connection, partition: Partition, user: str | None) -> bool:
    """Return whether a user sees a partition: their own, or of their allocations.

    The users of an allocation share its partitions.
    """
    query = "SELECT 1 FROM allocation_users WHERE allocation = ? AND user = ?"
    return user in (None, partition.owner) or bool(
        select_column(db, query, partition.allocation, user)
    )


def get_partition(db: Connection, name: str, user: str | None) -> Partition:
    """Return a partition, if a user may see it; None for a user who may see all."""
    partition = find_partition(db, name)
    if partition is None or not may_see(db, partition, user):
        refuse_unknown(db, "partitions", name, _SEEN, (user,))
    return partition


def list_partitions(db: Connection, user: str | None) -> tuple[Partition, ...]:
    return _select(db, _SEEN, user)


def insert_partition(db: Connection, partition: Partition) -> None:
    """Store a partition whose blocks have been taken."""
    first = partition.blocks[0]
    others = (*partition[:_BLOCKS], *partition[_BLOCKS + 1 :])
    insert(db, f"partitions ({_COLUMNS})", first, partition.num_ilds, others)


def replace_partition(db: Connection, partition: Partition) -> None:
    """Store the new values of a partition."""
    db.execute("DELETE FROM partitions WHERE name = ?", (partition.name,))
    insert_partition(db, partition)


def delete_partition(db: Connection, name: str) -> None:
    """Remove a partition that no device is held of, and give its IPUs back."""
    partition = find_partition(db, name)
    if partition is None:
        return
    free_ipus_of(db, partition)
    db.execute("DELETE FROM partitions WHERE name = ?", (name,))


def free_ipus_of(db: Connection, partition: Partition) -> None:
    """Give the IPUs of a partition back."""
    free = get_free_ipus(db, partition.allocation)
    set_free_ipus(db, partition.allocation, free | bits_of(partition.blocks))


def with_state(db: Connection, partition: Partition) -> Partition:
    """Return a partition with the state that its agents bring it to."""
    trouble = agents_in_trouble(db, partition.cluster, partition.blocks)
    down = [agent for agent in trouble if agent.status is AgentStatus.DOWN]
    if not trouble:
        return partition._replace(state=PartitionState.ACTIVE, reason="")
    agent = (down or trouble)[0]
    what = "is down" if down else "does not answer"
    return partition._replace(
        state=PartitionState.ERROR if down else PartitionState.PENDING,
        reason=f"agent {agent.name} ({agent.host}:{agent.port}) {what} until an "
        f"administrator runs: vipu-admin update agent {agent.name} --status up",
    )


def refresh(db: Connection, partition: Partition) -> Partition:
    """Look again at a partition that is on its way to a state."""
    if partition.state is not PartitionState.PENDING:
        return partition
    refreshed = with_state(db, partition)
    if refreshed != partition:
        replace_partition(db, refreshed)
    return refreshed


def _select(db: Connection, rest: str, *arguments: Any) -> tuple[Partition, ...]:
    rows = db.execute(f"SELECT {_COLUMNS} FROM partitions {rest}", arguments)
    return tuple(map(_partition, rows.fetchall()))


def _partition(row: Sequence[Any]) -> Partition:
    first, share, num_ilds = map(int, row[:3])
    others = row[3:]
    partition = from_row(Partition, (*others[:_BLOCKS], (), *others[_BLOCKS:]))
    distance = partition.cluster_ild_size
    return partition._replace(
        blocks=tuple(Block(first + n * distance, share) for n in range(num_ilds))
    )
