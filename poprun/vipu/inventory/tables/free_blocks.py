"""The free blocks of an allocation, as rows that SQLite keeps in order."""

from collections.abc import Iterator

from poprun.vipu.inventory.sqlite import Connection
from poprun.vipu.model import Block


class StoredFreeBlocks:
    """What `buddy` allocates from; each method but all() is one look-up in a B-tree."""

    def __init__(self, db: Connection, allocation: str) -> None:
        self._db = db
        self._allocation = allocation

    def smallest(self, size: int) -> Block | None:
        row = self._db.execute(
            "SELECT first, size FROM free_blocks WHERE allocation = ? AND size >= ? "
            "ORDER BY size, first LIMIT 1",
            (self._allocation, size),
        ).fetchone()
        return None if row is None else Block(*row)

    def largest(self) -> int:
        row = self._db.execute(
            "SELECT size FROM free_blocks WHERE allocation = ? "
            "ORDER BY size DESC LIMIT 1",
            (self._allocation,),
        ).fetchone()
        return 0 if row is None else int(row[0])

    def all(self) -> Iterator[Block]:
        rows = self._db.execute(
            "SELECT first, size FROM free_blocks WHERE allocation = ?",
            (self._allocation,),
        )
        return (Block(*row) for row in rows.fetchall())

    def has(self, block: Block) -> bool:
        row = self._db.execute(
            "SELECT 1 FROM free_blocks WHERE allocation = ? AND size = ? AND first = ?",
            (self._allocation, block.size, block.first),
        ).fetchone()
        return row is not None

    def add(self, block: Block) -> None:
        self._db.execute(
            "INSERT INTO free_blocks (allocation, size, first) VALUES (?, ?, ?)",
            (self._allocation, block.size, block.first),
        )

    def remove(self, block: Block) -> None:
        self._db.execute(
            "DELETE FROM free_blocks WHERE allocation = ? AND size = ? AND first = ?",
            (self._allocation, block.size, block.first),
        )

    def total(self) -> int:
        """Return how many IPUs are free."""
        (found,) = self._db.execute(
            "SELECT coalesce(sum(size), 0) FROM free_blocks WHERE allocation = ?",
            (self._allocation,),
        ).fetchone()
        return int(found)
