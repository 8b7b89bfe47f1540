"""Find what no inventory holds, although SQLite could: after an edit by hand."""

import sqlite3
from typing import Any

from poprun.vipu.inventory.transaction import CONVERTERS
from poprun.vipu.leases import PARENT

_STORED: dict[str, Any] = {"TEXT": str, "INTEGER": int, "REAL": float, "BLOB": bytes}


def find_damage(db: sqlite3.Connection) -> str:
    """Return what in an inventory cannot be, empty if nothing is found."""
    for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'"):
        for _, column, kind, *_ in db.execute(f"PRAGMA table_info({table})"):
            # An expression has no type, so it is not converted.
            for (value,) in db.execute(f"SELECT coalesce({column}, NULL) FROM {table}"):
                if not _can_be(column, kind, value):
                    return f"{column} in its table {table} is {repr(value)[:64]}"
    for table, _, other, _ in db.execute("PRAGMA foreign_key_check"):
        return f"its table {table} names one of its {other} that is not there"
    return ""


def _can_be(column: str, kind: str, value: Any) -> bool:
    if value is None:  # SQLite has checked that it may be
        return True
    *words, stored = kind.split()
    if type(value) is not _STORED[stored]:
        return False
    if words:
        try:
            CONVERTERS[words[0]](str(value).encode())
        except (LookupError, TypeError, ValueError):
            return False
    if isinstance(value, str | bytes):
        return True
    is_count = column.startswith("num_") or column.endswith("size")
    least = PARENT if column == "child" else int(is_count)
    return bool(value >= least)
