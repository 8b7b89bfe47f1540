"""Allocations in the database."""

from collections.abc import Sequence

from poprun.vipu.errors import AccessError, InUseError, VipuRuleError
from poprun.vipu.inventory.rows import Transaction
from poprun.vipu.inventory.tables import clusters
from poprun.vipu.inventory.tables.names import check_exists, check_new
from poprun.vipu.model import IPUS_PER_MACHINE, Agent, Allocation
from poprun.vipu.rules.checks import check_distinct, check_name


def create_allocation(
    db: Transaction,
    name: str,
    cluster: str,
    agents: Sequence[str],
    users: Sequence[str],
) -> Allocation:
    """Take agents out of the allocation of their cluster's name, into a new one."""
    check_name("allocation", name)
    clusters.get_cluster(db, cluster)
    check_new(db, "allocations", name)
    if not agents:
        raise VipuRuleError(f"Allocation {name} would have no agents. Name some.")
    check_distinct("Agent", agents)
    db.insert("allocations", name, cluster, b"")
    for agent in [clusters.get_agent(db, agent) for agent in agents]:
        if agent.allocation != cluster:
            where = f"in allocation {agent.allocation}" if agent.allocation else "free"
            raise InUseError(
                f"Agent {agent.name} is {where}, not one of cluster {cluster} that no "
                "other allocation has. Leave it out."
            )
        if clusters.ipus_of(agent) & ~get_free_ipus(db, cluster):
            raise InUseError(
                f"Agent {agent.name} has IPUs in use by a partition. Remove that "
                "first, or leave the agent out."
            )
        _move(db, agent, name)
    for user in users:
        check_exists(db, "users", user)
    add_users(db, name, users)
    return get_allocation(db, name)


def list_allocations(db: Transaction) -> tuple[Allocation, ...]:
    names = db.column("SELECT name FROM allocations ORDER BY rowid")
    return tuple(get_allocation(db, name) for name in names)


def get_allocation(db: Transaction, name: str) -> Allocation:
    check_exists(db, "allocations", name)
    (cluster,) = db.column("SELECT cluster FROM allocations WHERE name = ?", name)
    query = "SELECT name FROM agents WHERE allocation = ? ORDER BY machine"
    agents = db.column(query, name)
    return Allocation(name, cluster, tuple(agents), tuple(get_users(db, name)))


def remove_allocation(db: Transaction, name: str) -> None:
    allocation = get_allocation(db, name)
    cluster = allocation.cluster
    if name == cluster:
        raise InUseError(
            f"Allocation {name} is that of cluster {name} itself. Remove the cluster."
        )
    clusters.check_empty(db, "allocation", name)
    for agent in allocation.agents:
        _move(db, clusters.get_agent(db, agent), cluster)
    db.delete("allocation_users", allocation=name)
    db.delete("allocations", name=name)


def check_use(db: Transaction, allocation: Allocation, user: str) -> None:
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


def is_limited(db: Transaction, user: str) -> bool:
    """Return whether a user was made for certain allocations."""
    return any(db.column("SELECT is_limited FROM users WHERE name = ?", user))


def get_users(db: Transaction, allocation: str) -> list[str]:
    """Return the users that an allocation was made for; empty for every user."""
    query = "SELECT user FROM allocation_users WHERE allocation = ?"
    return db.column(query, allocation)


def add_users(db: Transaction, allocation: str, users: Sequence[str]) -> None:
    """Let users share an allocation."""
    for user in users:
        db.execute(
            "INSERT OR IGNORE INTO allocation_users VALUES (?, ?)", allocation, user
        )


def count_ipus(db: Transaction, allocation: str) -> int:
    """Return how many IPUs an allocation has."""
    query = "SELECT count(*) FROM agents WHERE allocation = ?"
    (agents,) = db.column(query, allocation)
    return int(agents) * IPUS_PER_MACHINE


def get_free_ipus(db: Transaction, allocation: str) -> int:
    """Return the set of the IPUs of an allocation that are in no partition."""
    query = "SELECT free_ipus FROM allocations WHERE name = ?"
    return clusters.ipus_in(*db.column(query, allocation))


def set_free_ipus(db: Transaction, allocation: str, ipus: int) -> None:
    """Say which IPUs of an allocation are in no partition."""
    db.update("allocations", {"free_ipus": clusters.column_of(ipus)}, name=allocation)


def _move(db: Transaction, agent: Agent, target: str) -> None:
    """Move an agent whose IPUs are free to another allocation of its cluster."""
    assert agent.allocation is not None
    ipus = clusters.ipus_of(agent)
    set_free_ipus(db, agent.allocation, get_free_ipus(db, agent.allocation) & ~ipus)
    set_free_ipus(db, target, get_free_ipus(db, target) | ipus)
    db.update("agents", {"allocation": target}, name=agent.name)
