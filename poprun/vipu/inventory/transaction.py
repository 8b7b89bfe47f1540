"""The database in a transaction, as the operations see it."""

import sqlite3
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from poprun.vipu.errors import NameTakenError, UnknownNameError, VipuRuleError
from poprun.vipu.liveness import Observer
from poprun.words import printable

T = TypeVar("T")

# The most names that the refusal of an unknown one lists.
MOST_LISTED = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """The database: operations read and change its tables in transactions."""

    connection: sqlite3.Connection
    # Tells whether the holders of leases live.
    observer: Observer
    # Whether the rules of the original are kept: see `partition_rules`.
    strict: bool
    # See `leases.advance_clock`.
    longest_step_s: float

    def execute(self, statement: str, *arguments: Any) -> sqlite3.Cursor:
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

    def column(self, query: str, *arguments: Any) -> list[Any]:
        """Return the first column of the rows that a query finds."""
        return [row[0] for row in self.execute(query, *arguments)]

    def select(self, kind: type[T], source: str, *arguments: Any) -> tuple[T, ...]:
        """Return values of a dataclass from the columns that its fields name.

        Args:
            source: The SQL after FROM: the table, a condition and an order.
        """
        names = field_names(kind)
        rows = self.execute(f"SELECT {', '.join(names)} FROM {source}", *arguments)
        return tuple(kind(**dict(zip(names, row, strict=True))) for row in rows)

    def insert(self, table: str, value: Any, **more: Any) -> None:
        """Insert a row: the fields of a dataclass, and more columns."""
        row = {name: getattr(value, name) for name in field_names(type(value))} | more
        names, marks = ", ".join(row), ", ".join("?" * len(row))
        self.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", *row.values())

    def exists(self, table: str, name: str) -> bool:
        return bool(self.column(f"SELECT 1 FROM {table} WHERE name = ?", name))

    def check_exists(self, table: str, name: str) -> None:
        """Check that a row of a table has this name.

        Raises:
            UnknownNameError: None has.
        """
        if not self.exists(table, name):
            self.refuse_unknown(table, name)

    def check_new(self, table: str, name: str) -> None:
        """Check that no row of a table has this name.

        Raises:
            NameTakenError: One has.
        """
        if self.exists(table, name):
            noun = table[:-1].capitalize()
            raise NameTakenError(f"{noun} {name} already exists. Choose another name.")

    def get(self, kind: type[T], table: str, name: str) -> T:
        """Return the value of a dataclass from the row of a name.

        Raises:
            UnknownNameError: No row has this name.
        """
        for value in self.select(kind, f"{table} WHERE name = ?", name):
            return value
        self.refuse_unknown(table, name)

    def refuse_unknown(
        self,
        table: str,
        name: str,
        selection: str = "ORDER BY rowid",
        *arguments: str | None,
    ) -> NoReturn:
        """Refuse a name that no row has, and list the names of the rows.

        Args:
            selection: The condition and the order of the listed names, in SQL.

        Raises:
            UnknownNameError: Always.
        """
        query = f"SELECT name FROM {table} {selection} LIMIT {MOST_LISTED + 1}"
        names = self.column(query, *arguments)
        there_are = f"Existing {table}: {listed(names)}."
        if not names:
            there_are = f"There are no {table}."
        raise UnknownNameError(f"There is no {table[:-1]} {name[:64]!r}. {there_are}")


def listed(names: list[str]) -> str:
    """Return the first names of a list, and whether there are more: ag0, ag1, ..."""
    more = ", ..." if len(names) > MOST_LISTED else ""
    return f"{', '.join(names[:MOST_LISTED])}{more}"


def field_names(kind: Any) -> tuple[str, ...]:
    # dataclasses.fields takes ten times as long, and each statement asks.
    return tuple(kind.__dataclass_fields__)
