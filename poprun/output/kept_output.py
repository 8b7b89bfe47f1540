"""The end of an instance's output, kept in memory until it is known to have failed."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

# Of each instance, and of all together.
MOST_BYTES = 1 << 20
MOST_BYTES_IN_ALL = 1 << 28
# What a piece takes in memory besides its text: programs write a line at a time.
_OVERHEAD = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What one read of a stream has brought, and when it was written."""

    stream: str
    data: bytes
    written: float


class KeptOutput:
    """The last bytes of both streams of one instance, in the order they came.

    Args:
        most: How many are kept, with what keeping them takes.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._pieces: deque[Piece] = deque()
        self._size = 0
        # By stream, how many bytes were dropped.
        self._dropped: dict[str, int] = {}
        # Those that have been opened, and those of them that have ended.
        self.streams: list[str] = []
        self.ended: list[str] = []

    def add(self, stream: str, data: bytes, written: float) -> None:
        self._pieces.append(Piece(stream=stream, data=data, written=written))
        self._size += len(data) + _OVERHEAD
        while self._size > self._most and len(self._pieces) > 1:
            self._drop(self._pieces.popleft())

    @property
    def num_dropped(self) -> int:
        return sum(self._dropped.values())

    def take(self) -> Iterator[Piece]:
        """Yield what is kept, each stream from the beginning of a line on."""
        mid_line = {stream for stream, number in self._dropped.items() if number}
        for piece in self._pieces:
            if piece.stream not in mid_line:
                yield piece
                continue
            cut = piece.data.find(b"\n") + 1
            self._dropped[piece.stream] += cut or len(piece.data)
            if cut:
                mid_line.discard(piece.stream)
                yield Piece(
                    stream=piece.stream, data=piece.data[cut:], written=piece.written
                )
        self._pieces.clear()

    def _drop(self, piece: Piece) -> None:
        self._size -= len(piece.data) + _OVERHEAD
        self._dropped[piece.stream] = self._dropped.get(piece.stream, 0) + len(
            piece.data
        )


def share(num_instances: int) -> int:
    """Return how many bytes are kept of each of so many instances."""
    return min(MOST_BYTES, MOST_BYTES_IN_ALL // max(1, num_instances))
