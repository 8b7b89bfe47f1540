"""The users of a server, their access keys, and the allocations that they may use."""

import hashlib
import hmac
import secrets
from collections.abc import Sequence

from poprun.vipu.errors import AccessError, InUseError
from poprun.vipu.inventory.transaction import Transaction
from poprun.vipu.model import Allocation, User
from poprun.vipu.rules.checks import check_name


def create_user(
    db: Transaction,
    name: str,
    allocations: Sequence[str] = (),
    *,
    is_admin: bool = False,
) -> str:
    """Make a user, and return the access key, which is not kept."""
    check_name("user", name)
    db.check_new("users", name)
    salt, access_key = secrets.token_bytes(16), secrets.token_urlsafe(18)
    row = (name, is_admin, bool(allocations), salt, _hash(salt, access_key))
    db.execute("INSERT INTO users VALUES (?, ?, ?, ?, ?)", *row)
    for allocation in allocations:
        add_users(db, allocation, [name])
    return access_key


def list_users(db: Transaction) -> tuple[User, ...]:
    names = db.column("SELECT name FROM users ORDER BY rowid")
    return tuple(get_user(db, name) for name in names)


def get_user(db: Transaction, name: str) -> User:
    db.check_exists("users", name)
    query = "SELECT is_admin, is_limited FROM users WHERE name = ?"
    is_admin, is_limited = db.execute(query, name).fetchone()
    query = "SELECT allocation FROM allocation_users WHERE user = ?"
    return User(
        name=name,
        is_admin=is_admin,
        allocations=tuple(db.column(query, name)),
        is_limited=is_limited,
    )


def remove_user(db: Transaction, name: str) -> None:
    for allocation in get_user(db, name).allocations:
        if users_of(db, allocation) == (name,):
            raise InUseError(
                f"User {name} is the only user of allocation {allocation}. Without "
                "this user, everyone could use it. Remove the allocation first."
            )
    db.execute("DELETE FROM users WHERE name = ?", name)


def check_access(db: Transaction, name: str, access_key: str) -> User:
    """Return the user whom an access key belongs to.

    Raises:
        AccessError: The user or the key is wrong; which of them is not said.
    """
    query = "SELECT salt, key_hash FROM users WHERE name = ?"
    salt, expected = db.execute(query, name).fetchone() or (b"", b"")
    # Hashed for an unknown user too: the time tells nothing.
    if not hmac.compare_digest(_hash(salt, access_key), expected):
        raise AccessError(
            "The user or the access key is not accepted. Ask the administrator for a "
            "new one: vipu-admin create user NAME."
        )
    return get_user(db, name)


def users_of(db: Transaction, allocation: str) -> tuple[str, ...]:
    """Return the users that an allocation was made for; empty for every user."""
    query = "SELECT user FROM allocation_users WHERE allocation = ?"
    return tuple(db.column(query, allocation))


def add_users(db: Transaction, allocation: str, users: Sequence[str]) -> None:
    """Let users share an allocation.

    Raises:
        UnknownNameError: There is no such allocation or user.
    """
    db.check_exists("allocations", allocation)
    for user in users:
        db.check_exists("users", user)
        statement = "INSERT OR IGNORE INTO allocation_users VALUES (?, ?)"
        db.execute(statement, allocation, user)


def is_limited(db: Transaction, user: str) -> bool:
    """Return whether a user was made for certain allocations."""
    return any(db.column("SELECT is_limited FROM users WHERE name = ?", user))


def check_use(db: Transaction, allocation: Allocation, user: str) -> None:
    """Check that a user may make partitions in an allocation.

    Raises:
        AccessError: It was made for other users, or the user for other allocations.
    """
    # The allocation with the name of its cluster is for all users without limits.
    is_closed = allocation.users and allocation.name != allocation.cluster
    if user not in allocation.users and (is_closed or is_limited(db, user)):
        raise AccessError(
            f"User {user} may not use allocation {allocation.name}. Name another, or "
            "let the administrator add the user."
        )


def _hash(salt: bytes, access_key: str) -> bytes:
    # A key has 144 random bits, so there is nothing to gain by a slow hash.
    return hashlib.sha256(salt + access_key.encode()).digest()
