"""Names in the database: whether there are such, and what to say if not."""

from _sqlite3 import Connection
from collections.abc import Sequence
from typing import NoReturn, TypeVar

from poprun.vipu.errors import NameTakenError, UnknownNameError
from poprun.vipu.inventory.tables.rows import columns_of, select, select_column

T = TypeVar("T")

# So many are listed to a user who named one that there is not.
MOST_LISTED = 10


def get_named(db: Connection, kind: type[T], table: str, name: str) -> T:
    """Return the value whose columns are a row of a table.

    Raises:
        UnknownNameError: No row has this name.
    """
    query = f"SELECT {columns_of(kind)} FROM {table} WHERE name = ?"
    for value in select(db, kind, query, (name,)):
        return value
    refuse_unknown(db, table, name)


def check_exists(db: Connection, table: str, name: str) -> None:
    """Check that a row of a table has this name.

    Raises:
        UnknownNameError: None has.
    """
    if not _exists(db, table, name):
        refuse_unknown(db, table, name)


def check_new(db: Connection, table: str, name: str) -> None:
    """Check that no row of a table has this name.

    Raises:
        NameTakenError: One has.
    """
    if _exists(db, table, name):
        raise NameTakenError(
            f"There is {table[:-1]} {name} already. Choose another name."
        )


def refuse_unknown(
    db: Connection,
    table: str,
    name: str,
    rest: str = "ORDER BY rowid",
    arguments: Sequence[str | None] = (),
) -> NoReturn:
    """Refuse a name that is in no row, and list those that are.

    Args:
        rest: The rest of the query for those to list: which, and in which order.
        arguments: Those of the query.

    Raises:
        UnknownNameError: Always.
    """
    query = f"SELECT name FROM {table} {rest} LIMIT {MOST_LISTED + 1}"
    names = select_column(db, query, *arguments)
    verb = "is" if len(names) == 1 else "are"
    existing = f"There {verb} {listed(names)}." if names else f"There are no {table}."
    raise UnknownNameError(f"There is no {table[:-1]} {name[:64]!r}. {existing}")


def listed(names: Sequence[str]) -> str:
    """Return the first names of a list, and whether there are more: ag0, ag1, ..."""
    more = ", ..." if len(names) > MOST_LISTED else ""
    return f"{', '.join(names[:MOST_LISTED])}{more}"


def _exists(db: Connection, table: str, name: str) -> bool:
    return bool(select_column(db, f"SELECT 1 FROM {table} WHERE name = ?", name))
