"""Allocations, and the users of a server, in the database."""

import hashlib
import hmac
import secrets
import sqlite3
from collections.abc import Sequence

from poprun.vipu import buddy
from poprun.vipu.inventory.cluster_store import get_agent, get_cluster
from poprun.vipu.inventory.free_blocks import StoredFreeBlocks
from poprun.vipu.inventory.names import exists, refuse_unknown
from poprun.vipu.model import (
    IPUS_PER_MACHINE,
    Agent,
    Allocation,
    Block,
    User,
    check_distinct,
    check_name,
)
from poprun.vipu.vipu_errors import (
    AccessError,
    InUseError,
    NameTakenError,
    VipuRuleError,
)


def create_allocation(
    db: sqlite3.Connection,
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
                "first, "
                "or leave the agent out."
            )
        buddy.release(free, block)
        db.execute(
            "UPDATE agents SET allocation = ? WHERE name = ?", (name, agent.name)
        )
    for user in users:
        get_user(db, user)
        db.execute("INSERT OR IGNORE INTO allocation_users VALUES (?, ?)", (name, user))
    return get_allocation(db, name)


def list_allocations(db: sqlite3.Connection) -> tuple[Allocation, ...]:
    rows = db.execute("SELECT name FROM allocations ORDER BY rowid").fetchall()
    return tuple(get_allocation(db, row[0]) for row in rows)


def get_allocation(db: sqlite3.Connection, name: str) -> Allocation:
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


def remove_allocation(db: sqlite3.Connection, name: str) -> None:
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


def check_use(db: sqlite3.Connection, allocation: str, user: str) -> None:
    """Check that a user may make partitions in an allocation.

    Raises:
        AccessError: It was made for other users.
    """
    users = get_users(db, allocation)
    if users and user not in users:
        raise AccessError(
            f"User {user} may not use allocation {allocation}. Name another with "
            "--vipu-allocation, or let the administrator add the user."
        )


def get_users(db: sqlite3.Connection, allocation: str) -> set[str]:
    """Return the users that an allocation was made for; empty for every user."""
    rows = db.execute(
        "SELECT user FROM allocation_users WHERE allocation = ?", (allocation,)
    )
    return {row[0] for row in rows}


def create_user(db: sqlite3.Connection, user: User) -> str:
    """Make a user, and return the access key; only a hash of it is kept."""
    if exists(db, "users", user.name):
        raise NameTakenError(f"There is user {user.name} already. Choose another name.")
    salt, access_key = secrets.token_bytes(16), secrets.token_urlsafe(18)
    db.execute(
        "INSERT INTO users VALUES (?, ?, ?, ?)",
        (user.name, user.is_admin, salt, _hash(salt, access_key)),
    )
    for allocation in user.allocations:
        get_allocation(db, allocation)
        db.execute(
            "INSERT OR IGNORE INTO allocation_users VALUES (?, ?)",
            (allocation, user.name),
        )
    return access_key


def list_users(db: sqlite3.Connection) -> tuple[User, ...]:
    rows = db.execute("SELECT name FROM users ORDER BY rowid").fetchall()
    return tuple(get_user(db, row[0]) for row in rows)


def get_user(db: sqlite3.Connection, name: str) -> User:
    row = db.execute("SELECT is_admin FROM users WHERE name = ?", (name,)).fetchone()
    if row is None:
        refuse_unknown(db, "users", name)
    allocations = db.execute(
        "SELECT allocation FROM allocation_users WHERE user = ?", (name,)
    )
    return User(
        name=name,
        is_admin=bool(row[0]),
        allocations=tuple(allocation for (allocation,) in allocations),
    )


def remove_user(db: sqlite3.Connection, name: str) -> None:
    for allocation in get_user(db, name).allocations:
        if get_users(db, allocation) == {name}:
            raise InUseError(
                f"User {name} is the only user of allocation {allocation}, which every "
                "user could use then. Remove the allocation first."
            )
    db.execute("DELETE FROM allocation_users WHERE user = ?", (name,))
    db.execute("DELETE FROM users WHERE name = ?", (name,))


def check_access(db: sqlite3.Connection, name: str, access_key: str) -> User:
    row = db.execute(
        "SELECT salt, key_hash FROM users WHERE name = ?", (name,)
    ).fetchone()
    salt, expected = row if row else (b"", b"")
    # Hashed for an unknown user too: the time tells nothing.
    if not hmac.compare_digest(_hash(salt, access_key), expected):
        raise AccessError(
            "The user or the access key is not accepted. Ask the administrator for a "
            "new one: vipu-admin create user NAME."
        )
    return get_user(db, name)


def _hash(salt: bytes, access_key: str) -> bytes:
    # A key has 144 random bits, so there is nothing to gain by a slow hash.
    return hashlib.sha256(salt + access_key.encode()).digest()


def _ipus_of(agent: Agent) -> Block:
    return Block(agent.positions.start, IPUS_PER_MACHINE)
