"""Allocations in the database."""

from _sqlite3 import Connection
from collections.abc import Sequence

from poprun.vipu.errors import AccessError, InUseError, VipuRuleError
from poprun.vipu.inventory.tables.clusters import (
    check_empty,
    get_agent,
    get_cluster,
    list_agents,
)
from poprun.vipu.inventory.tables.free_blocks import FreeBlockTable
from poprun.vipu.inventory.tables.names import check_exists, check_new, refuse_unknown
from poprun.vipu.inventory.tables.rows import insert, select_column
from poprun.vipu.model import IPUS_PER_MACHINE, Agent, Allocation, Block
from poprun.vipu.rules import buddy
from poprun.vipu.rules.checks import check_distinct, check_name


def create_allocation(
    db: Connection,
    name: str,
    cluster: str,
    agents: Sequence[str],
    users: Sequence[str],
) -> Allocation:
    """Take agents out of the allocation of their cluster's name, into a new one."""
    check_name("allocation", name)
    get_cluster(db, cluster)
    check_new(db, "allocations", name)
    if not agents:
        raise VipuRuleError(f"Allocation {name} would have no agents. Name some.")
    check_distinct("Agent", agents)
    members = [get_agent(db, agent) for agent in agents]
    insert(db, "allocations", name, cluster)
    rest, free = FreeBlockTable(db, cluster), FreeBlockTable(db, name)
    for agent in members:
        if agent.allocation != cluster:
            where = f"in allocation {agent.allocation}" if agent.allocation else "free"
            raise InUseError(
                f"Agent {agent.name} is {where}, not one of cluster {cluster} that no "
                "other allocation has. Leave it out."
            )
        block = _ipus_of(agent)
        if not buddy.allocate_at(rest, block):
            raise InUseError(
                f"Agent {agent.name} has IPUs in use by a partition. Remove that "
                "first, or leave the agent out."
            )
        buddy.release(free, block)
        db.execute(
            "UPDATE agents SET allocation = ? WHERE name = ?", (name, agent.name)
        )
    for user in users:
        check_exists(db, "users", user)
    add_users(db, name, users)
    return get_allocation(db, name)


def list_allocations(db: Connection) -> tuple[Allocation, ...]:
    names = select_column(db, "SELECT name FROM allocations ORDER BY rowid")
    return tuple(get_allocation(db, name) for name in names)


def get_allocation(db: Connection, name: str) -> Allocation:
    clusters = select_column(db, "SELECT cluster FROM allocations WHERE name = ?", name)
    if not clusters:
        refuse_unknown(db, "allocations", name)
    query = "SELECT name FROM agents WHERE allocation = ? ORDER BY machine"
    agents = select_column(db, query, name)
    return Allocation(name, clusters[0], tuple(agents), tuple(get_users(db, name)))


def remove_allocation(db: Connection, name: str) -> None:
    allocation = get_allocation(db, name)
    cluster = allocation.cluster
    if name == cluster:
        raise InUseError(
            f"Allocation {name} is that of cluster {name} itself. Remove the cluster."
        )
    check_empty(db, "allocation", name)
    rest = FreeBlockTable(db, cluster)
    for agent in list_agents(db, cluster):
        if agent.allocation == name:
            buddy.release(rest, _ipus_of(agent))
    db.execute("DELETE FROM free_blocks WHERE allocation = ?", (name,))
    db.execute("DELETE FROM allocation_users WHERE allocation = ?", (name,))
    db.execute("UPDATE agents SET allocation = ? WHERE allocation = ?", (cluster, name))
    db.execute("DELETE FROM allocations WHERE name = ?", (name,))


def check_use(db: Connection, allocation: Allocation, user: str) -> None:
    """Check that a user may make partitions in an allocation.

    Raises:
        AccessError: It was made for other users, or the user for other allocations.
    """
    # What no allocation was made of in a cluster is for every user, if not limited.
    is_closed = allocation.users and allocation.name != allocation.cluster
    if user not in allocation.users and (is_closed or is_limited(db, user)):
        raise AccessError(
            f"User {user} may not use allocation {allocation.name}. Name another, or "
            "let the administrator add the user."
        )


def is_limited(db: Connection, user: str) -> bool:
    """Return whether a user was made for certain allocations."""
    return any(select_column(db, "SELECT is_limited FROM users WHERE name = ?", user))


def get_users(db: Connection, allocation: str) -> list[str]:
    """Return the users that an allocation was made for; empty for every user."""
    query = "SELECT user FROM allocation_users WHERE allocation = ?"
    return select_column(db, query, allocation)


def add_users(db: Connection, allocation: str, users: Sequence[str]) -> None:
    """Let users share an allocation."""
    db.executemany(
        "INSERT OR IGNORE INTO allocation_users VALUES (?, ?)",
        [(allocation, user) for user in users],
    )


def count_ipus(db: Connection, allocation: str) -> int:
    """Return how many IPUs an allocation has."""
    query = "SELECT count(*) FROM agents WHERE allocation = ?"
    (agents,) = select_column(db, query, allocation)
    return int(agents) * IPUS_PER_MACHINE


def _ipus_of(agent: Agent) -> Block:
    return Block(agent.positions.start, IPUS_PER_MACHINE)
