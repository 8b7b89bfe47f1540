"""Names in the database, and what to say when there is none such."""

from typing import NoReturn

from poprun.vipu.errors import UnknownNameError
from poprun.vipu.inventory.sqlite import Connection

# So many are listed to a user who named one that there is not.
MOST_LISTED = 10


def exists(db: Connection, table: str, name: str) -> bool:
    """Return whether a row of a table has this name."""
    row = db.execute(f"SELECT 1 FROM {table} WHERE name = ?", (name,)).fetchone()
    return row is not None


def check_exists(db: Connection, table: str, name: str) -> None:
    """Check that a row of a table has this name.

    Raises:
        UnknownNameError: None has.
    """
    if not exists(db, table, name):
        refuse_unknown(db, table, name)


def refuse_unknown(db: Connection, table: str, name: str) -> NoReturn:
    """Refuse a name that is in no row, and list those that are.

    Raises:
        UnknownNameError: Always.
    """
    rows = db.execute(
        f"SELECT name FROM {table} ORDER BY rowid LIMIT {MOST_LISTED + 1}"
    ).fetchall()
    names = [row[0] for row in rows]
    raise UnknownNameError(
        f"There is no {table[:-1]} {name[:64]!r}. {list_of(table, names)}"
    )


def list_of(table: str, names: list[str]) -> str:
    """Say which names there are, in a sentence."""
    if not names:
        return f"There are no {table}."
    more = ", ..." if len(names) > MOST_LISTED else ""
    shown = ", ".join(names[:MOST_LISTED])
    return f"There {'is' if len(names) == 1 else 'are'} {shown}{more}."
