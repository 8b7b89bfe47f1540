"""The users of a server, and their access keys, in the database.

What hashes is imported late: every launch imports this, and no launch needs that.
"""

from collections.abc import Sequence

from poprun.vipu.errors import AccessError, InUseError
from poprun.vipu.inventory.rows import Transaction
from poprun.vipu.inventory.tables.machines import add_users, get_users
from poprun.vipu.inventory.tables.names import check_exists, check_new
from poprun.vipu.model import User
from poprun.vipu.rules.checks import check_name


def create_user(
    db: Transaction, name: str, allocations: Sequence[str], is_admin: bool
) -> str:
    """Make a user, and return the access key; only a hash of it is kept."""
    check_name("user", name)
    import secrets

    check_new(db, "users", name)
    salt, access_key = secrets.token_bytes(16), secrets.token_urlsafe(18)
    is_limited = bool(allocations)
    db.insert("users", name, is_admin, is_limited, salt, _hash(salt, access_key))
    for allocation in allocations:
        check_exists(db, "allocations", allocation)
        add_users(db, allocation, [name])
    return access_key


def list_users(db: Transaction) -> tuple[User, ...]:
    names = db.column("SELECT name FROM users ORDER BY rowid")
    return tuple(get_user(db, name) for name in names)


def get_user(db: Transaction, name: str) -> User:
    check_exists(db, "users", name)
    query = "SELECT is_admin, is_limited FROM users WHERE name = ?"
    is_admin, is_limited = map(bool, db.execute(query, name).fetchone())
    query = "SELECT allocation FROM allocation_users WHERE user = ?"
    return User(
        name=name,
        is_admin=is_admin,
        allocations=tuple(db.column(query, name)),
        is_limited=is_limited,
    )


def remove_user(db: Transaction, name: str) -> None:
    for allocation in get_user(db, name).allocations:
        if get_users(db, allocation) == [name]:
            raise InUseError(
                f"User {name} is the only user of allocation {allocation}. Without "
                "this user, everyone could use it. Remove the allocation first."
            )
    db.delete("allocation_users", user=name)
    db.delete("users", name=name)


def check_access(db: Transaction, name: str, access_key: str) -> User:
    import hmac

    query = "SELECT salt, key_hash FROM users WHERE name = ?"
    salt, expected = db.execute(query, name).fetchone() or (b"", b"")
    # Hashed for an unknown user too: the time tells nothing.
    if not hmac.compare_digest(_hash(salt, access_key), expected):
        raise AccessError(
            "The user or the access key is not accepted. Ask the administrator for a "
            "new one: vipu-admin create user NAME."
        )
    return get_user(db, name)


def _hash(salt: bytes, access_key: str) -> bytes:
    import hashlib

    # A key has 144 random bits, so there is nothing to gain by a slow hash.
    return hashlib.sha256(salt + access_key.encode()).digest()
