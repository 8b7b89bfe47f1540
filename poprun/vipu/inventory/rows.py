"""Rows of the database, as values: a field is a column.

A dataclass within another lies flat in the row: of a lease, the holder's user, job,
host, process number and so on. Blocks of IPUs are one text of numbers.
"""

from _sqlite3 import Connection, Cursor
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, NamedTuple, TypeVar, cast

from poprun.vipu.errors import VipuRuleError
from poprun.vipu.liveness import Observer
from poprun.vipu.model import Block
from poprun.vipu.wire import items_of, optional_of
from poprun.words import printable

T = TypeVar("T")


class Transaction(NamedTuple):
    """A transaction, through which operations read and change the tables."""

    connection: Connection
    # Tells whether the holders of leases live.
    observer: Observer
    # Whether the rules of the original are kept: see `partition_rules`.
    strict: bool
    # See `leases.advance_clock`.
    longest_step_s: float

    def execute(self, statement: str, *arguments: Any) -> Cursor:
        """Execute a statement.

        Raises:
            VipuRuleError: A text has bytes of no character: a command's argument.
        """
        try:
            return self.connection.execute(statement, arguments)
        except UnicodeEncodeError as error:
            raise VipuRuleError(
                f"'{printable(str(error.object))}' is not valid UTF-8, so nothing in "
                "an inventory has this name. 'vipu list' shows the names."
            ) from None

    def insert(self, table: str, *values: Any) -> None:
        """Insert a row of some values, each with as many columns as it has fields."""
        row = _flat(values)
        marks = ", ".join("?" * len(row))
        self.execute(f"INSERT INTO {table} VALUES ({marks})", *row)

    def select(self, kind: type[T], source: str, *arguments: Any) -> tuple[T, ...]:
        """Return values of a type.

        Args:
            source: What follows FROM: the table that has columns for the fields of the
                type, which rows, and in which order.
        """
        columns = _columns(cast(Hashable, kind))
        return self.read(kind, f"SELECT {columns} FROM {source}", *arguments)

    def read(self, kind: type[T], query: str, *arguments: Any) -> tuple[T, ...]:
        """Return the rows that a query finds, as values of a type."""
        rows = self.execute(query, *arguments).fetchall()
        return tuple(from_row(kind, row) for row in rows)

    def column(self, query: str, *arguments: Any) -> list[Any]:
        """Return the first column of the rows that a query finds."""
        return [row[0] for row in self.execute(query, *arguments).fetchall()]

    def update(self, table: str, changes: dict[str, Any], **where: Any) -> None:
        """Change columns of the rows that have certain values in other columns."""
        statement = f"UPDATE {table} SET {_equal(changes, ', ')}"
        condition = _equal(where, " AND ")
        self.execute(
            f"{statement} WHERE {condition}", *changes.values(), *where.values()
        )

    def delete(self, table: str, **where: Any) -> None:
        """Delete the rows that have certain values."""
        self.execute(
            f"DELETE FROM {table} WHERE {_equal(where, ' AND ')}", *where.values()
        )


def columns_of(kind: Any) -> dict[str, Any]:
    """Return the columns of a dataclass, each with the type of its values."""
    columns: dict[str, Any] = {}
    for name, field in kind.__annotations__.items():
        columns |= columns_of(field) if is_dataclass(field) else {name: field}
    return columns


def stored_type(kind: Any) -> tuple[type, bool]:
    """Return the type that SQLite stores values of a type as, and if None is one."""
    other = optional_of(kind)
    value_type = other or kind
    if items_of(value_type) or issubclass(value_type, str):
        return str, other is not None
    return int if value_type is bool else value_type, other is not None


def from_row(kind: type[T], row: Sequence[Any]) -> T:
    """Return a value of a type from its columns.

    Raises:
        ValueError: It cannot be such.
        TypeError: It cannot be such.
    """
    read: Callable[[Iterator[Any]], T] = _reader(cast(Hashable, kind))
    return read(iter(row))


@cache
def _columns(kind: Any) -> str:
    return ", ".join(columns_of(kind))


def _equal(columns: Iterable[str], separator: str) -> str:
    return separator.join(f"{column} = ?" for column in columns)


def _flat(values: Iterable[Any]) -> list[Any]:
    row: list[Any] = []
    for value in values:
        if is_dataclass(value):
            row += _flat([getattr(value, each.name) for each in fields(value)])
        elif isinstance(value, tuple):
            row.append(" ".join(map(str, _flat(value))))
        else:
            row.append(value)
    return row


@cache
def _reader(kind: Any) -> Callable[[Iterator[Any]], Any]:
    """Return what takes the columns of a value, and makes it."""
    if other := optional_of(kind):
        return _optional_reader(other)
    if is_dataclass(kind):
        make: Any = kind
        readers = {name: _reader(part) for name, part in kind.__annotations__.items()}
        return lambda columns: make(**{n: read(columns) for n, read in readers.items()})
    if item := items_of(kind):
        return _read_blocks if item is Block else _read_words
    if kind in (str, bytes):
        return next
    return lambda columns: kind(next(columns))


def _read_blocks(columns: Iterator[Any]) -> tuple[Block, ...]:
    numbers = [int(number) for number in next(columns).split()]
    pairs = zip(numbers[::2], numbers[1::2], strict=True)
    return tuple(Block(first=first, size=size) for first, size in pairs)


def _read_words(columns: Iterator[Any]) -> tuple[str, ...]:
    return tuple(next(columns).split())


def _optional_reader(kind: Any) -> Callable[[Iterator[Any]], Any]:
    read, width = _reader(kind), len(columns_of(kind)) if is_dataclass(kind) else 1

    def read_optional(columns: Iterator[Any]) -> Any:
        row = [next(columns) for _ in range(width)]
        return None if row[0] is None else read(iter(row))

    return read_optional
