"""The last line of each instance, and a copy of the output for clients."""

import re
from collections.abc import Callable

from poprun.words import printable

# How much of the output of each instance is kept for its last line.
KEPT = 512
# Colours, and what else a program tells a terminal.
CONTROL_SEQUENCES = r"\x1b(?:\[[0-9;:?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)"

# Is called with an instance, the name of a stream and its next bytes; with none at its
# end.
Listener = Callable[[int, str, bytes], object]


class OutputTap:
    """Looks at all that the instances write, before the router gets it."""

    def __init__(self) -> None:
        self._ends: dict[int, bytes] = {}
        # How many streams of each instance are open.
        self._num_open: dict[int, int] = {}
        self.listener: Listener = lambda rank, stream, data: None

    def open(self, rank: int) -> None:
        """Take in that a stream of an instance is read from now on."""
        self._num_open[rank] = self._num_open.get(rank, 0) + 1

    def feed(self, rank: int, stream: str, data: bytes) -> None:
        """Take in what a stream of an instance has brought."""
        end = data if len(data) >= KEPT else self._ends.get(rank, b"") + data
        self._ends[rank] = end[-KEPT:]
        self.listener(rank, stream, data)

    def close(self, rank: int, stream: str) -> None:
        """Take in that a stream has ended."""
        self._num_open[rank] -= 1
        self.listener(rank, stream, b"")

    def is_open(self, rank: int) -> bool:
        """Return whether any stream of an instance is open."""
        return bool(self._num_open.get(rank))

    def last_line(self, rank: int) -> str:
        """Return the last line that an instance has written, without colours."""
        text = self._ends.get(rank, b"").decode(errors="replace")
        lines = re.split(r"[\r\n]+", re.sub(CONTROL_SEQUENCES, "", text))
        line = next((line for line in reversed(lines) if line.strip()), "")
        return printable(line.strip())
