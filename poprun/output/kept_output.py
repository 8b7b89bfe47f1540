"""The end of an instance's output, kept in memory until it is known to have failed."""

from collections import deque
from collections.abc import Iterator

# The most that is kept of one instance, and of all together.
MOST_BYTES = 1 << 20
MOST_BYTES_IN_ALL = 1 << 28
# The memory of a piece besides its text: programs write a line at a time.
_OVERHEAD = 200

# The bytes of one read, with the stream before them and their time after them.
Piece = tuple[str, bytes, float]


class KeptOutput:
    """The last bytes of both streams of one instance, in the order they came.

    Args:
        num_instances: How many instances share the memory.
    """

    def __init__(self, num_instances: int) -> None:
        self._most = min(MOST_BYTES, MOST_BYTES_IN_ALL // max(1, num_instances))
        self._pieces: deque[Piece] = deque()
        self._size = 0
        self.num_dropped = 0
        # The streams that may begin in the middle of a line, as their head was dropped.
        self._mid_line: set[str] = set()
        # The streams that have ended.
        self.ended: list[str] = []

    def add(self, stream: str, data: bytes, written: float) -> None:
        self._pieces.append((stream, data, written))
        self._size += len(data) + _OVERHEAD
        while self._size > self._most and len(self._pieces) > 1:
            stream, data, _ = self._pieces.popleft()
            self._size -= len(data) + _OVERHEAD
            self.num_dropped += len(data)
            self._mid_line.add(stream)

    def take(self) -> Iterator[Piece]:
        """Yield the kept pieces; each stream starts at the beginning of a line."""
        for stream, data, written in self._pieces:
            if stream in self._mid_line:
                dropped, newline, data = data.partition(b"\n")
                self.num_dropped += len(dropped + newline)
                if not newline:
                    continue
                self._mid_line.discard(stream)
            yield stream, data, written
