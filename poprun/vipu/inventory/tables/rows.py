"""Rows of the database -> values, and back: a field is a column.

A named tuple within another lies flat in the row: of a lease, the holder's user, job,
host, process number and so on.
"""

from _sqlite3 import Connection
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, cast, get_args, get_origin

T = TypeVar("T")


def insert(db: Connection, table: str, *values: Any) -> None:
    """Insert a row of some values, each with as many columns as it has fields."""
    row = _flat(values)
    marks = ", ".join("?" * len(row))
    db.execute(f"INSERT INTO {table} VALUES ({marks})", row)


def select(
    db: Connection, kind: type[T], query: str, arguments: Sequence[Any] = ()
) -> tuple[T, ...]:
    """Return the rows that a query finds, as values of a type."""
    rows = db.execute(query, arguments).fetchall()
    return tuple(from_row(kind, row) for row in rows)


def select_column(db: Connection, query: str, *arguments: Any) -> list[Any]:
    """Return the first column of the rows that a query finds."""
    return [row[0] for row in db.execute(query, arguments).fetchall()]


def from_row(kind: type[T], row: Sequence[Any]) -> T:
    """Return a value of a type from its columns.

    Raises:
        ValueError: It cannot be such.
        TypeError: It cannot be such.
    """
    read: Callable[[Iterator[Any]], T] = _reader(cast(Hashable, kind))
    return read(iter(row))


def columns_of(kind: Any) -> str:
    """Return the columns of a named tuple whose fields are no named tuples."""
    return ", ".join(kind._fields)


def _flat(values: Sequence[Any]) -> list[Any]:
    row: list[Any] = []
    for value in values:
        row += _flat(value) if isinstance(value, tuple) else [value]
    return row


@cache
def _reader(kind: Any) -> Callable[[Iterator[Any]], Any]:
    """Return what takes the columns of a value, and makes it."""
    if get_origin(kind) is UnionType:
        (other,) = (arm for arm in get_args(kind) if arm is not NoneType)
        return _optional_reader(other)
    if hasattr(kind, "_fields"):
        readers = [_reader(field) for field in kind.__annotations__.values()]
        return lambda columns: kind(*[read(columns) for read in readers])
    if kind is str or get_origin(kind) is tuple:
        return next
    return lambda columns: kind(next(columns))


def _optional_reader(kind: Any) -> Callable[[Iterator[Any]], Any]:
    read, width = _reader(kind), len(getattr(kind, "_fields", " "))

    def read_optional(columns: Iterator[Any]) -> Any:
        own = [next(columns) for _ in range(width)]
        return None if own[0] is None else read(iter(own))

    return read_optional
