"""Find what no inventory holds, although SQLite could: after an edit by hand."""

from _sqlite3 import Connection
from typing import Any

from poprun.vipu.inventory.rows import from_row, stored_type
from poprun.vipu.inventory.schema import TABLES
from poprun.vipu.leases import PARENT

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
    stored: Any = stored_type(kind)[0]
    try:
        from_row(kind, [value])
    except (AttributeError, ValueError):
        return False
    if type(value) is not stored or isinstance(value, str | bytes):
        return type(value) is stored
    is_count = column.startswith("num_") or column.endswith("size")
    least = PARENT if column == "child" else int(is_count)
    return bool(value >= least)
