"""Partitions in the database, and the states that agents bring them to."""

from dataclasses import replace

from poprun.vipu.inventory.rows import Transaction
from poprun.vipu.inventory.tables.machines import (
    agents_in_trouble,
    get_agent,
    get_free_ipus,
    set_free_ipus,
)
from poprun.vipu.inventory.tables.names import refuse_unknown
from poprun.vipu.model import Agent, AgentStatus, Partition, PartitionState
from poprun.vipu.rules.free_ipus import bits_of

# What `may_see` says, for many.
_SEEN = (
    "WHERE ?1 IS NULL OR owner = ?1 OR allocation IN "
    "(SELECT allocation FROM allocation_users WHERE user = ?1) ORDER BY created, name"
)


def find_partition(db: Transaction, name: str) -> Partition | None:
    partitions = db.select(Partition, "partitions WHERE name = ?", name)
    return partitions[0] if partitions else None


def may_see(db: Transaction, partition: Partition, user: str | None) -> bool:
    """Return whether a user sees a partition: their own, or of their allocations.

    The users of an allocation share its partitions.
    """
    query = "SELECT 1 FROM allocation_users WHERE allocation = ? AND user = ?"
    return user in (None, partition.owner) or bool(
        db.column(query, partition.allocation, user)
    )


def get_partition(db: Transaction, name: str, user: str | None) -> Partition:
    """Return a partition, if a user may see it; None for a user who may see all."""
    partition = find_partition(db, name)
    if partition is None or not may_see(db, partition, user):
        refuse_unknown(db, "partitions", name, _SEEN, user)
    return partition


def list_partitions(db: Transaction, user: str | None) -> tuple[Partition, ...]:
    return db.select(Partition, f"partitions {_SEEN}", user)


def insert_partition(db: Transaction, partition: Partition) -> None:
    """Store a partition whose blocks have been taken."""
    db.insert("partitions", partition, partition.size)


def replace_partition(db: Transaction, partition: Partition) -> None:
    """Store the new values of a partition."""
    db.delete("partitions", name=partition.name)
    insert_partition(db, partition)


def delete_partition(db: Transaction, partition: Partition) -> None:
    """Remove a partition that no device is held of, and give its IPUs back."""
    free_ipus_of(db, partition)
    db.delete("partitions", name=partition.name)


def free_ipus_of(db: Transaction, partition: Partition) -> None:
    """Give the IPUs of a partition back."""
    free = get_free_ipus(db, partition.allocation)
    set_free_ipus(db, partition.allocation, free | bits_of(partition.blocks))


def with_state(db: Transaction, partition: Partition) -> Partition:
    """Return a partition with the state that its agents bring it to."""
    trouble = agents_in_trouble(db, partition.cluster, partition.blocks)
    down = [agent for agent in trouble if agent.status is AgentStatus.DOWN]
    if not trouble:
        return replace(partition, state=PartitionState.ACTIVE, reason="")
    agent = (down or trouble)[0]
    problem = "is down" if down else "does not answer"
    return replace(
        partition,
        state=PartitionState.ERROR if down else PartitionState.PENDING,
        reason=f"agent {agent.name} ({agent.host}:{agent.port}) {problem} until an "
        f"administrator runs: vipu-admin update agent {agent.name} --status up",
    )


def set_agent_status(db: Transaction, name: str, status: AgentStatus) -> Agent:
    """Change the status of an agent, and the states of partitions that wait for it."""
    get_agent(db, name)
    db.update("agents", {"status": status}, name=name)
    agent = get_agent(db, name)
    pending = "partitions WHERE cluster = ? AND state = 'pending'"
    for partition in db.select(Partition, pending, agent.cluster):
        replace_partition(db, with_state(db, partition))
    return agent
