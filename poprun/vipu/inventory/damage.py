"""Find what no inventory holds, although SQLite could: after an edit by hand."""

from _sqlite3 import Connection
from typing import Any

from poprun.vipu.inventory.rows import from_row, stored_type
from poprun.vipu.inventory.schema import TABLES

# The least number of columns that have another than 0.
LEAST = {
    "child": -1,
    "num_ilds": 1,
    "ild_size": 1,
    "cluster_ild_size": 1,
    "size": 1,
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
    for table, columns in TABLES.items():
        for column, kind in columns.items():
            for (value,) in db.execute(f"SELECT {column} FROM {table}"):
                if not _can_be(column, kind, value):
                    return f"{column} in its table {table} is {repr(value)[:64]}"
    for table, together in TOGETHER.items():
        missing = " + ".join(f"({column} IS NULL)" for column in together)
        query = f"SELECT 1 FROM {table} WHERE {missing} NOT IN (0, {len(together)})"
        if db.execute(query).fetchone():
            return f"its table {table} has only some of {', '.join(together)}"
    for table, _, other, _ in db.execute("PRAGMA foreign_key_check"):
        return f"its table {table} names one of its {other} that is not there"
    return ""


def _can_be(column: str, kind: Any, value: Any) -> bool:
    if value is None:  # SQLite has checked that it may be
        return True
    stored, _ = stored_type(kind)
    try:
        from_row(kind, [value])
    except (AttributeError, ValueError):
        return False
    fits = isinstance(value, str | bytes) or value >= LEAST.get(column, 0)
    return type(value) is stored and fits
