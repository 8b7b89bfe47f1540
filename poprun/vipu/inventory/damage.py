"""Find what no inventory holds, although SQLite could: after an edit by hand."""

from _sqlite3 import Connection
from collections.abc import Iterator
from enum import Enum
from typing import Any

from poprun.vipu.model import Agent, Cluster, Partition

# The columns whose values are members of an enumeration, by their names.
ENUMERATIONS = {
    column: kind
    for values in (Cluster, Agent, Partition)
    for column, kind in values.__annotations__.items()
    if isinstance(kind, type) and issubclass(kind, Enum)
}
# The least number of columns that have another than 0.
LEAST = {
    "child": -1,
    "num_ilds": 1,
    "ild_size": 1,
    "ild_share": 1,
    "cluster_ild_size": 1,
    "num_ipus": 1,
    "num_gcds": 1,
    "gcd_size": 1,
    "num_replicas": 1,
}

# Of these a row has all values or none.
TOGETHER = {
    "agents": ("cluster", "machine", "allocation"),
    "devices": ("pid", "start_time", "boot_id", "pid_namespace"),
}


def find_damage(db: Connection) -> str:
    """Return what in an inventory cannot be, empty if nothing is found."""
    tables = db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    for (table,) in tables.fetchall():
        for column, declared, is_needed in _columns(db, table):
            # No names of users: they are the schema's.
            values = db.execute(f"SELECT {column}, typeof({column}) FROM {table}")
            for value, stored in values:
                is_null = stored == "null"
                if is_null and not is_needed:
                    continue
                if stored != declared or not _can_be(column, value):
                    shown = "no value" if is_null else repr(value)[:64]
                    return f"{column} in its table {table} is {shown}"
    for table, columns in TOGETHER.items():
        missing = " + ".join(f"({column} IS NULL)" for column in columns)
        found = f"SELECT 1 FROM {table} WHERE {missing} NOT IN (0, {len(columns)})"
        if db.execute(found).fetchone():
            return f"its table {table} has only some of {', '.join(columns)}"
    for table, _, other, _ in db.execute("PRAGMA foreign_key_check"):
        return f"its table {table} names one of its {other} that is not there"
    return ""


def _columns(db: Connection, table: str) -> Iterator[tuple[str, str, bool]]:
    """Iterate over the name and type of columns, and whether each must have a value."""
    for row in db.execute(f"PRAGMA table_info({table})").fetchall():
        _, name, declared, is_needed, _, place_in_key = row
        yield name, declared.lower(), bool(is_needed or place_in_key)


def _can_be(column: str, value: Any) -> bool:
    if column in ENUMERATIONS:
        return value in tuple(ENUMERATIONS[column])
    return isinstance(value, str | bytes) or value >= LEAST.get(column, 0)
