"""The columns of the database as values of Python, and the values that cannot be."""

import json
import sqlite3
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from poprun.vipu.inventory.transaction import field_names
from poprun.vipu.leases import PARENT, Holder, ProcessIdentity
from poprun.vipu.model import Block, Spelled


def connect(database: str, **options: Any) -> sqlite3.Connection:
    """Return a connection that reads columns as the schema names their types."""
    connection: sqlite3.Connection = sqlite3.connect(
        database,
        isolation_level=None,
        check_same_thread=False,
        detect_types=sqlite3.PARSE_DECLTYPES,
        **options,
    )
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def _process_from(values: list[Any]) -> ProcessIdentity:
    pid, start_time, boot_id, pid_namespace = values
    return ProcessIdentity(
        pid=pid, start_time=start_time, boot_id=boot_id, pid_namespace=pid_namespace
    )


def _read_holder(text: bytes) -> Holder:
    user, job, host, process = json.loads(text)
    return Holder(user=user, job=job, host=host, process=_process_from(process))


def _read_blocks(text: bytes) -> tuple[Block, ...]:
    return tuple(Block(first=first, size=size) for first, size in json.loads(text))


def _reader_of(kind: Callable[[str], Any]) -> Callable[[bytes], Any]:
    return lambda text: kind(text.decode())


# How the bytes of a column become a value, by the first word of the column's type.
_CONVERTERS: dict[str, Callable[[bytes], Any]] = {
    "blocks": _read_blocks,
    "bool": {b"0": False, b"1": True}.__getitem__,
    "holder": _read_holder,
    "names": lambda text: tuple(json.loads(text)),
    "process": lambda text: _process_from(json.loads(text)),
} | {kind.__name__: _reader_of(kind) for kind in Spelled.__subclasses__()}
for _name, _converter in _CONVERTERS.items():
    sqlite3.register_converter(_name, _converter)
# A dataclass is the list of its fields.
_FIELDS = {
    kind: attrgetter(*field_names(kind)) for kind in (Block, Holder, ProcessIdentity)
}
_to_json = json.JSONEncoder(
    separators=(",", ":"), default=lambda value: _FIELDS[type(value)](value)
).encode
for _kind in (Holder, ProcessIdentity, tuple):
    sqlite3.register_adapter(_kind, _to_json)

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
            _CONVERTERS[words[0]](str(value).encode())
        except (LookupError, TypeError, ValueError):
            return False
    if isinstance(value, str | bytes):
        return True
    is_count = column.startswith("num_") or column.endswith("size")
    least = PARENT if column == "child" else int(is_count)
    return bool(value >= least)
