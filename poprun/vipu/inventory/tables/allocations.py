"""Allocations in the database."""

from _sqlite3 import Connection
from collections.abc import Sequence

from poprun.vipu.errors import AccessError, InUseError, VipuRuleError
from poprun.vipu.inventory.tables.clusters import (
    check_empty,
    column_of,
    get_agent,
    get_cluster,
    ipus_in,
    list_agents,
)
from poprun.vipu.inventory.tables.names import check_exists, check_new, refuse_unknown
from poprun.vipu.inventory.tables.rows import insert, select_column
from poprun.vipu.model import IPUS_PER_MACHINE, Agent, Allocation, Block
from poprun.vipu.rules.checks import check_distinct, check_name
from poprun.vipu.rules.free_ipus import bits_of


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
    insert(db, "allocations", name, cluster, b"")
    free = get_free_ipus(db, cluster)
    for agent in members:
        if agent.allocation != cluster:
            where = f"in allocation {agent.allocation}" if agent.allocation else "free"
            raise InUseError(
                f"Agent {agent.name} is {where}, not one of cluster {cluster} that no "
                "other allocation has. Leave it out."
            )
        if _ipus_of(agent) & ~free:
            raise InUseError(
                f"Agent {agent.name} has IPUs in use by a partition. Remove that "
                "first, or leave the agent out."
            )
        db.execute(
            "UPDATE agents SET allocation = ? WHERE name = ?", (name, agent.name)
        )
    _move_ipus(db, members, cluster, name)
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
    members = [agent for agent in list_agents(db, cluster) if agent.allocation == name]
    _move_ipus(db, members, name, cluster)
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


def get_free_ipus(db: Connection, allocation: str) -> int:
    """Return the set of the IPUs of an allocation that are in no partition."""
    query = "SELECT free_ipus FROM allocations WHERE name = ?"
    return ipus_in(*select_column(db, query, allocation))


def set_free_ipus(db: Connection, allocation: str, ipus: int) -> None:
    """Say which IPUs of an allocation are in no partition."""
    db.execute(
        "UPDATE allocations SET free_ipus = ? WHERE name = ?",
        (column_of(ipus), allocation),
    )


def _move_ipus(
    db: Connection, agents: Sequence[Agent], source: str, target: str
) -> None:
    """Let another allocation have the free IPUs of some agents."""
    ipus = sum(map(_ipus_of, agents))
    set_free_ipus(db, source, get_free_ipus(db, source) & ~ipus)
    set_free_ipus(db, target, get_free_ipus(db, target) | ipus)


def _ipus_of(agent: Agent) -> int:
    return bits_of([Block(agent.positions.start, IPUS_PER_MACHINE)])
