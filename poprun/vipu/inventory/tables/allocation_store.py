"""Allocations in the database."""

from collections.abc import Sequence

from poprun.vipu.errors import (
    AccessError,
    InUseError,
    NameTakenError,
    VipuRuleError,
)
from poprun.vipu.inventory.sqlite import Connection
from poprun.vipu.inventory.tables.cluster_store import get_agent, get_cluster
from poprun.vipu.inventory.tables.free_blocks import StoredFreeBlocks
from poprun.vipu.inventory.tables.names import check_exists, exists, refuse_unknown
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
    if exists(db, "allocations", name):
        raise NameTakenError(
            f"There is allocation {name} already. Choose another name."
        )
    if not agents:
        raise VipuRuleError(f"Allocation {name} would have no agents. Name some.")
    check_distinct("Agent", agents)
    members = [get_agent(db, agent) for agent in agents]
    db.execute("INSERT INTO allocations VALUES (?, ?)", (name, cluster))
    rest, free = StoredFreeBlocks(db, cluster), StoredFreeBlocks(db, name)
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
        db.execute("INSERT OR IGNORE INTO allocation_users VALUES (?, ?)", (name, user))
    return get_allocation(db, name)


def list_allocations(db: Connection) -> tuple[Allocation, ...]:
    rows = db.execute("SELECT name FROM allocations ORDER BY rowid").fetchall()
    return tuple(get_allocation(db, row[0]) for row in rows)


def get_allocation(db: Connection, name: str) -> Allocation:
    row = db.execute(
        "SELECT cluster FROM allocations WHERE name = ?", (name,)
    ).fetchone()
    if row is None:
        refuse_unknown(db, "allocations", name)
    agents = db.execute(
        "SELECT name FROM agents WHERE allocation = ? ORDER BY machine", (name,)
    )
    users = db.execute(
        "SELECT user FROM allocation_users WHERE allocation = ?", (name,)
    )
    return Allocation(
        name=name,
        cluster=row[0],
        agents=tuple(agent for (agent,) in agents),
        users=tuple(user for (user,) in users),
    )


def remove_allocation(db: Connection, name: str) -> None:
    allocation = get_allocation(db, name)
    if name == allocation.cluster:
        raise InUseError(
            f"Allocation {name} is that of cluster {name} itself. Remove the cluster."
        )
    used = db.execute(
        "SELECT name FROM partitions WHERE allocation = ? LIMIT 3", (name,)
    ).fetchall()
    if used:
        raise InUseError(
            f"Allocation {name} cannot be removed while it has partitions, as "
            f"{', '.join(row[0] for row in used)}. Remove them first."
        )
    rest = StoredFreeBlocks(db, allocation.cluster)
    for agent in allocation.agents:
        buddy.release(rest, _ipus_of(get_agent(db, agent)))
    db.execute("DELETE FROM free_blocks WHERE allocation = ?", (name,))
    db.execute("DELETE FROM allocation_users WHERE allocation = ?", (name,))
    db.execute(
        "UPDATE agents SET allocation = ? WHERE allocation = ?",
        (allocation.cluster, name),
    )
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
    row = db.execute("SELECT is_limited FROM users WHERE name = ?", (user,)).fetchone()
    return row is not None and bool(row[0])


def get_users(db: Connection, allocation: str) -> set[str]:
    """Return the users that an allocation was made for; empty for every user."""
    rows = db.execute(
        "SELECT user FROM allocation_users WHERE allocation = ?", (allocation,)
    )
    return {row[0] for row in rows}


def _ipus_of(agent: Agent) -> Block:
    return Block(agent.positions.start, IPUS_PER_MACHINE)
