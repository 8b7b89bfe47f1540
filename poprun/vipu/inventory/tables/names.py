"""Names in the database: whether there are such, and what to say if not."""

from collections.abc import Sequence
from typing import NoReturn, TypeVar

from poprun.vipu.errors import NameTakenError, UnknownNameError
from poprun.vipu.inventory.rows import Transaction

T = TypeVar("T")

# So many are listed to a user who named one that there is not.
MOST_LISTED = 10


def get_named(db: Transaction, kind: type[T], table: str, name: str) -> T:
    """Return the value whose columns are a row of a table.

    Raises:
        UnknownNameError: No row has this name.
    """
    for value in db.select(kind, f"{table} WHERE name = ?", name):
        return value
    refuse_unknown(db, table, name)


def check_exists(db: Transaction, table: str, name: str) -> None:
    """Check that a row of a table has this name.

    Raises:
        UnknownNameError: None has.
    """
    if not _exists(db, table, name):
        refuse_unknown(db, table, name)


def check_new(db: Transaction, table: str, name: str) -> None:
    """Check that no row of a table has this name.

    Raises:
        NameTakenError: One has.
    """
    if _exists(db, table, name):
        noun = table[:-1].capitalize()
        raise NameTakenError(f"{noun} {name} already exists. Choose another name.")


def refuse_unknown(
    db: Transaction,
    table: str,
    name: str,
    selection: str = "ORDER BY rowid",
    *arguments: str | None,
) -> NoReturn:
    """Refuse a name that is in no row, and list those that are.

    Args:
        selection: Which names to list, and in which order, in SQL.
        arguments: Those of the selection.

    Raises:
        UnknownNameError: Always.
    """
    query = f"SELECT name FROM {table} {selection} LIMIT {MOST_LISTED + 1}"
    names = db.column(query, *arguments)
    existing = (
        f"Existing {table}: {listed(names)}." if names else f"There are no {table}."
    )
    raise UnknownNameError(f"There is no {table[:-1]} {name[:64]!r}. {existing}")


def listed(names: Sequence[str]) -> str:
    """Return the first names of a list, and whether there are more: ag0, ag1, ..."""
    more = ", ..." if len(names) > MOST_LISTED else ""
    return f"{', '.join(names[:MOST_LISTED])}{more}"


def _exists(db: Transaction, table: str, name: str) -> bool:
    return bool(db.column(f"SELECT 1 FROM {table} WHERE name = ?", name))
