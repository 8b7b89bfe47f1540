"""What is used of sqlite3, without its conversion of dates: that takes 3 ms to import.

Every launch imports this. The names are those of sqlite3, which has them from _sqlite3.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlite3 import (
        SQLITE_BUSY,
        SQLITE_CANTOPEN,
        SQLITE_CORRUPT,
        SQLITE_FULL,
        SQLITE_IOERR,
        SQLITE_LOCKED,
        SQLITE_NOTADB,
        Connection,
        Error,
        connect,
    )
else:
    from _sqlite3 import (
        SQLITE_BUSY,
        SQLITE_CANTOPEN,
        SQLITE_CORRUPT,
        SQLITE_FULL,
        SQLITE_IOERR,
        SQLITE_LOCKED,
        SQLITE_NOTADB,
        Connection,
        Error,
        connect,
    )

__all__ = (
    "SQLITE_BUSY",
    "SQLITE_CANTOPEN",
    "SQLITE_CORRUPT",
    "SQLITE_FULL",
    "SQLITE_IOERR",
    "SQLITE_LOCKED",
    "SQLITE_NOTADB",
    "Connection",
    "Error",
    "connect",
)
