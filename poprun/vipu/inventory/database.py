"""The file of an inventory: made, opened and locked, with every failure in words.

One SQLite database in WAL mode, readable by its user alone. It appears under its name
complete or not at all, so processes that start together need no other lock.
"""

import errno
import os
import sqlite3
import stat
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from threading import RLock
from urllib.parse import quote

from poprun.vipu import errors
from poprun.vipu.inventory.columns import connect, find_damage
from poprun.vipu.inventory.location import VARIABLE, check_private, make_private
from poprun.words import printable

# "vipu" in ASCII: what makes a SQLite file an inventory.
APPLICATION_ID = 0x76697075
# Goes up with every change of the tables: no inventory of another version is opened.
VERSION = 12
SCHEMA = Path(__file__).with_name("schema.sql")
# When a connection that does not sync empties the log (WAL).
MOST_LOG_PAGES = 128
MOST_LOG_BYTES = 4 << 20
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class Database:
    """One connection, shared by the threads of one process. Not for use after a fork.

    Args:
        path: The file. It is made, with its directory, if it does not exist.
        timeout_s: How long to wait while other processes write.
        syncs: Whether `close` waits until all that was written is on the disk. If
            not, that may be undone by a power cut, but not by the death of a process.
        is_copy: Work on a copy in memory, and make and change no file.
    """

    def __init__(
        self, path: str, timeout_s: float, *, syncs: bool = True, is_copy: bool = False
    ) -> None:
        self.path = path
        self._directory = os.path.dirname(path) or "."
        self._timeout_s = timeout_s
        self._wait = f"PRAGMA busy_timeout = {int(timeout_s * 1000)}"
        self._syncs = syncs
        self._lock = RLock()
        # Whether transactions become one now, and whether SQLite has undone that.
        self._is_grouping = self._is_undone = False
        with self._translated():
            self.connection = self._copy() if is_copy else self._open()
            try:
                self._begin()
            except BaseException:
                self.connection.close()
                raise

    @contextmanager
    def transaction(self, *, write: bool) -> Iterator[None]:
        """Run statements as one transaction; an exception undoes them all.

        Raises:
            InventoryError: The file cannot be read, written or locked.
        """
        with self._lock, self._translated():
            execute = self.connection.execute
            if write and self._is_grouping and not self.connection.in_transaction:
                execute("BEGIN IMMEDIATE")
            is_part = self.connection.in_transaction
            begin = "BEGIN IMMEDIATE" if write else "BEGIN"
            execute("SAVEPOINT part" if is_part else begin)
            try:
                yield
                execute("RELEASE part" if is_part else "COMMIT")
            except BaseException as error:
                self._undo(is_part)
                known = isinstance(error, errors.VipuError | sqlite3.Error | OSError)
                # Values that no poprun has written may have led to it.
                if known or not isinstance(error, Exception):
                    raise
                if damage := find_damage(self.connection):
                    raise self._corrupt(damage) from error
                raise

    @contextmanager
    def group(self) -> Iterator[None]:
        """Make one transaction of those in a block, from the first that writes on.

        An exception within one of them undoes that one.

        Raises:
            InventoryError: No change of the block has been made.
        """
        with self._lock, self._translated():
            self._is_grouping, self._is_undone = True, False
            try:
                yield
                if self._is_undone:
                    raise self._full()
                if self.connection.in_transaction:
                    self.connection.execute("COMMIT")
            finally:
                self._is_grouping = False
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")

    def _undo(self, is_part: bool) -> None:
        """Undo the changes of a transaction, or of one that is part of a group."""
        if not self.connection.in_transaction:  # a full disk has ended it already
            self._is_undone = True
        elif is_part:
            self.connection.execute("ROLLBACK TO part")
            self.connection.execute("RELEASE part")
        else:
            self.connection.execute("ROLLBACK")

    def close(self) -> None:
        with self._lock, self._translated():
            reader = None if self._syncs else self._open_to_read()
            self.connection.close()
            if reader is not None:
                reader.close()

    def _exists(self) -> bool:
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            return False
        if not stat.S_ISREG(status.st_mode):
            raise self._unavailable("is no file")
        return True

    def _create(self) -> None:
        file, new = tempfile.mkstemp(prefix=".new-", dir=self._directory)
        try:
            os.fchmod(file, 0o600)  # whatever the umask
            os.close(file)
            with closing(self._connect(new)) as connection:
                self._set_up(connection)
                _fill(connection)
                # Last: writes in this mode may never reach the file itself.
                connection.execute("PRAGMA journal_mode = WAL")
            # Another process may have been faster: its inventory is as good.
            with suppress(FileExistsError):
                os.link(new, self.path)
        finally:
            for suffix in ("", "-journal", "-wal", "-shm"):
                with suppress(FileNotFoundError):
                    os.unlink(new + suffix)

    def _open(self) -> sqlite3.Connection:
        make_private(self._directory)
        exists = self._exists()
        check_private(self.path)
        if not exists:
            self._create()
        return self._connect(self.path)

    def _copy(self) -> sqlite3.Connection:
        """Return what the file holds, or a new inventory if there is none."""
        copy = connect(":memory:")
        if not self._exists():
            _fill(copy)
            return copy
        check_private(self.path)
        with closing(self._connect(self.path)) as file:
            file.execute(self._wait)
            file.backup(copy)
        return copy

    def _open_to_read(self) -> sqlite3.Connection | None:
        """Return a connection that, closed last, does not empty the log (WAL).

        SQLite empties the log when the last connection is closed, unless that can only
        read. It waits for the disk four times then, which takes 5 to 30 ms.
        """
        with suppress(sqlite3.Error):
            connection = connect(f"{_uri(self.path)}?mode=ro", uri=True)
            # Only one that has read keeps the others from being the last.
            connection.execute("PRAGMA user_version").fetchone()
            return connection
        return None

    def _connect(self, path: str) -> sqlite3.Connection:
        """Return a connection that does not wait for others."""
        return connect(f"{_uri(path)}?mode=rw", uri=True, timeout=0)

    def _set_up(self, connection: sqlite3.Connection) -> None:
        # Survives the death of any process; a power cut may undo the last changes.
        connection.execute("PRAGMA synchronous = NORMAL")
        # The log grows while a process is stopped that reads; it shrinks after that.
        connection.execute(f"PRAGMA journal_size_limit = {MOST_LOG_BYTES}")
        if not self._syncs:
            # The next to open it reads the whole log: 1000 pages would take 10 ms.
            connection.execute(f"PRAGMA wal_autocheckpoint = {MOST_LOG_PAGES}")

    def _begin(self) -> None:
        """Check the version, and wait for others from now on.

        SQLite waits as long where locks do not work at all.
        """
        try:
            # SQLite reads the file, and so locks it, as soon as anything is set.
            self._set_up(self.connection)
        except sqlite3.Error as error:
            if not _is_busy(error) or self._lock_failure():
                raise
            self.connection.execute(self._wait)
            self._set_up(self.connection)
        self.connection.execute(self._wait)
        self._check_version()

    def _check_version(self) -> None:
        (identity,) = self.connection.execute("PRAGMA application_id").fetchone()
        (version,) = self.connection.execute("PRAGMA user_version").fetchone()
        if identity != APPLICATION_ID:
            raise errors.InventoryCorruptError(
                f"{self.path} is not a V-IPU inventory. Move it away, or name another "
                "place with POPRUN_VIPU_INVENTORY."
            )
        if version != VERSION:
            age, advice = "A newer", "Use that poprun"
            if version < VERSION:
                age, advice = "An older", "Move it away, and poprun creates a new one"
            raise errors.InventoryVersionError(
                f"{age} poprun made the V-IPU inventory {self.path}: it has version "
                f"{version}, and this poprun knows {VERSION}. {advice}, or name "
                "another place with POPRUN_VIPU_INVENTORY."
            )

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._translate(error) from error
        except UnicodeDecodeError as error:  # sqlite3 quotes a damaged table
            raise self._corrupt("its texts are not valid UTF-8") from error
        except OSError as error:
            if error.errno in NO_ROOM:
                raise self._full() from error
            problem = f"cannot be opened: {error.strerror}"
            raise self._unavailable(problem) from error

    def _translate(self, error: sqlite3.Error) -> errors.InventoryError:
        code = _code_of(error)
        if _is_busy(error):
            if failure := self._lock_failure():
                return self._unavailable(
                    f"is where file locks do not work: {failure}. Network file systems "
                    "need a lock service",
                    "a place on a local disk",
                )
            return errors.InventoryBusyError(
                f"Other processes kept the V-IPU inventory {self.path} locked for "
                f"{self._timeout_s:g} s. Try again."
            )
        if code == sqlite3.SQLITE_FULL or self._is_disk_full(code):
            return self._full()
        # The statements are right: a table or a text is not what it was.
        is_strange = isinstance(error, sqlite3.OperationalError) and code <= 1
        if is_strange or code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return self._corrupt(printable(str(error)))
        return self._unavailable(f"cannot be read or written: {error}")

    def _unavailable(
        self, problem: str, place: str = "another place"
    ) -> errors.InventoryUnavailableError:
        return errors.InventoryUnavailableError(
            f"The V-IPU inventory {self.path} {problem}. Name {place} with {VARIABLE}."
        )

    def _lock_failure(self) -> str:
        """Return why files beside the inventory cannot be locked, empty if they can.

        Not a file of SQLite's: to close it would release the locks of this process.
        """
        # Where no file can be made, SQLite's own error says more.
        with suppress(OSError), tempfile.TemporaryFile(dir=self._directory) as file:
            try:
                os.lockf(file.fileno(), os.F_TLOCK, 0)
            except OSError as error:
                return error.strerror or str(error)
        return ""

    def _corrupt(self, damage: str) -> errors.InventoryCorruptError:
        return errors.InventoryCorruptError(
            f"The V-IPU inventory {self.path} is damaged: {damage}. Move it away, and "
            "poprun creates a new one; the partitions in it are lost."
        )

    def _is_disk_full(self, code: int) -> bool:
        # SQLite calls a write that did not fit an I/O error in some places.
        if code not in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN):
            return False
        try:
            state = os.statvfs(self._directory)
        except OSError:
            return False
        return state.f_bavail == 0 or (state.f_files > 0 and state.f_favail == 0)

    def _full(self) -> errors.InventoryFullError:
        return errors.InventoryFullError(
            f"There is no space on the disk for the V-IPU inventory {self.path}. Free "
            "some space, or name another place with POPRUN_VIPU_INVENTORY."
        )


def _code_of(error: sqlite3.Error) -> int:
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _is_busy(error: sqlite3.Error) -> bool:
    return _code_of(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _uri(path: str) -> str:
    return f"file://{quote(os.fsencode(os.path.join(os.getcwd(), path)))}"


def _fill(connection: sqlite3.Connection) -> None:
    """Make the tables of a new inventory, as one transaction."""
    connection.executescript(
        f"BEGIN; PRAGMA application_id = {APPLICATION_ID}; "
        f"PRAGMA user_version = {VERSION}; {SCHEMA.read_text()} COMMIT;"
    )
