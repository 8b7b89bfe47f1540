"""Partitions, the users who see them, and the states that agents bring them to."""

from dataclasses import replace
from typing import Any

from poprun.vipu.inventory import machines
from poprun.vipu.inventory.transaction import Transaction
from poprun.vipu.model import Agent, AgentStatus, Partition, PartitionState
from poprun.vipu.rules.free_ipus import bits_of

# A user sees their own partitions, and all in the allocations that they may use.
# NULL is a user who sees all.
_SEEN = (
    "(?1 IS NULL OR owner = ?1 OR allocation IN "
    "(SELECT allocation FROM allocation_users WHERE user = ?1))"
)


def find_partition(
    db: Transaction, name: str, user: str | None = None
) -> Partition | None:
    """Return a partition if there is one of this name that the user sees."""
    source = f"partitions WHERE {_SEEN} AND name = ?2"
    return next(iter(db.select(Partition, source, user, name)), None)


def get_partition(db: Transaction, name: str, user: str | None = None) -> Partition:
    """Return a partition, with its state as it is now.

    Raises:
        UnknownNameError: There is none; the sentence lists those there are.
    """
    partition = find_partition(db, name, user)
    if partition is None:
        selection = f"WHERE {_SEEN} ORDER BY created, name"
        db.refuse_unknown("partitions", name, selection, user)
    return partition


def list_partitions(db: Transaction, user: str | None = None) -> tuple[Partition, ...]:
    source = f"partitions WHERE {_SEEN} ORDER BY created, name"
    return db.select(Partition, source, user)


def insert_partition(db: Transaction, partition: Partition) -> None:
    """Store a new partition; its blocks have been taken."""
    db.insert("partitions", partition, size=partition.size)


def store_partition(db: Transaction, partition: Partition) -> None:
    """Store new values of a partition; its blocks have been taken."""
    db.execute("DELETE FROM partitions WHERE name = ?", partition.name)
    insert_partition(db, partition)


def delete_partition(db: Transaction, partition: Partition) -> None:
    """Remove a partition that no device is held of, and give its IPUs back."""
    machines.free(db, partition.allocation, bits_of(partition.blocks))
    db.execute("DELETE FROM partitions WHERE name = ?", partition.name)


def with_state(db: Transaction, partition: Partition, **changes: Any) -> Partition:
    """Return a partition with the state that its agents bring it to, and changes."""
    trouble = machines.agents_in_trouble(db, partition.cluster, partition.blocks)
    down = [agent for agent in trouble if agent.status is AgentStatus.DOWN]
    if not trouble:
        return replace(partition, state=PartitionState.ACTIVE, reason="", **changes)
    agent = (down or trouble)[0]
    problem = "is down" if down else "does not answer"
    return replace(
        partition,
        state=PartitionState.ERROR if down else PartitionState.PENDING,
        reason=f"agent {agent.name} ({agent.host}:{agent.port}) {problem} until an "
        f"administrator runs: vipu-admin update agent {agent.name} --status up",
        **changes,
    )


def set_agent_status(db: Transaction, name: str, status: AgentStatus) -> Agent:
    """Let an emulated IPU-Machine fail, or come back.

    Partitions on it change their state when they are next created or reset, those
    that are pending at once.
    """
    agent = replace(machines.get_agent(db, name), status=status)
    db.execute("UPDATE agents SET status = ? WHERE name = ?", status, name)
    pending = "partitions WHERE cluster = ? AND state = 'pending'"
    for partition in db.select(Partition, pending, agent.cluster):
        store_partition(db, with_state(db, partition))
    return agent
