"""The free blocks of an allocation, as rows that SQLite keeps in order."""

from _sqlite3 import Connection
from collections.abc import Iterator

from poprun.vipu.inventory.tables.rows import insert, select, select_column
from poprun.vipu.model import Block

_BLOCKS = "SELECT first, size FROM free_blocks WHERE allocation = ? "


class FreeBlockTable:
    """What `buddy` allocates from; each method but all() is one look-up in a B-tree."""

    def __init__(self, db: Connection, allocation: str) -> None:
        self._db = db
        self._allocation = allocation

    def smallest(self, size: int) -> Block | None:
        query = _BLOCKS + "AND size >= ? ORDER BY size, first LIMIT 1"
        blocks = select(self._db, Block, query, (self._allocation, size))
        return blocks[0] if blocks else None

    def largest(self) -> int:
        query = _BLOCKS + "ORDER BY size DESC LIMIT 1"
        blocks = select(self._db, Block, query, (self._allocation,))
        return blocks[0].size if blocks else 0

    def all(self) -> Iterator[Block]:
        return iter(select(self._db, Block, _BLOCKS, (self._allocation,)))

    def has(self, block: Block) -> bool:
        query = _BLOCKS + "AND first = ? AND size = ?"
        return bool(select_column(self._db, query, self._allocation, *block))

    def add(self, block: Block) -> None:
        insert(self._db, "free_blocks", self._allocation, block.size, block.first)

    def remove(self, block: Block) -> None:
        self._db.execute(
            "DELETE FROM free_blocks WHERE allocation = ? AND first = ? AND size = ?",
            (self._allocation, *block),
        )

    def total(self) -> int:
        """Return how many IPUs are free."""
        return sum(block.size for block in self.all())
