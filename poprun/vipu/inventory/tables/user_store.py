"""The users of a server, and their access keys, in the database.

What hashes is imported late: every launch imports this, and no launch needs that.
"""

from collections.abc import Sequence

from poprun.vipu.errors import AccessError, InUseError, NameTakenError
from poprun.vipu.inventory.sqlite import Connection
from poprun.vipu.inventory.tables.allocation_store import get_users
from poprun.vipu.inventory.tables.names import check_exists, exists, refuse_unknown
from poprun.vipu.model import User
from poprun.vipu.rules.checks import check_name


def create_user(
    db: Connection, name: str, allocations: Sequence[str], is_admin: bool
) -> str:
    """Make a user, and return the access key; only a hash of it is kept."""
    check_name("user", name)
    import secrets

    if exists(db, "users", name):
        raise NameTakenError(f"There is user {name} already. Choose another name.")
    salt, access_key = secrets.token_bytes(16), secrets.token_urlsafe(18)
    db.execute(
        "INSERT INTO users VALUES (?, ?, ?, ?, ?)",
        (
            name,
            is_admin,
            salt,
            _hash(salt, access_key),
            bool(allocations),
        ),
    )
    for allocation in allocations:
        check_exists(db, "allocations", allocation)
        db.execute(
            "INSERT OR IGNORE INTO allocation_users VALUES (?, ?)",
            (allocation, name),
        )
    return access_key


def list_users(db: Connection) -> tuple[User, ...]:
    rows = db.execute("SELECT name FROM users ORDER BY rowid").fetchall()
    return tuple(get_user(db, row[0]) for row in rows)


def get_user(db: Connection, name: str) -> User:
    row = db.execute(
        "SELECT is_admin, is_limited FROM users WHERE name = ?", (name,)
    ).fetchone()
    if row is None:
        refuse_unknown(db, "users", name)
    allocations = db.execute(
        "SELECT allocation FROM allocation_users WHERE user = ?", (name,)
    )
    return User(
        name=name,
        is_admin=bool(row[0]),
        allocations=tuple(allocation for (allocation,) in allocations),
        is_limited=bool(row[1]),
    )


def remove_user(db: Connection, name: str) -> None:
    for allocation in get_user(db, name).allocations:
        if get_users(db, allocation) == {name}:
            raise InUseError(
                f"User {name} is the only user of allocation {allocation}, which every "
                "user could use then. Remove the allocation first."
            )
    db.execute("DELETE FROM allocation_users WHERE user = ?", (name,))
    db.execute("DELETE FROM users WHERE name = ?", (name,))


def check_access(db: Connection, name: str, access_key: str) -> User:
    import hmac

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
    import hashlib

    # A key has 144 random bits, so there is nothing to gain by a slow hash.
    return hashlib.sha256(salt + access_key.encode()).digest()
