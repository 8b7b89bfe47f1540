"""Read the instances' streams: what they bring goes to the output router."""

import os
import termios
import time
from collections.abc import Iterator

from poprun.stdio.router import OutputRouter

# How much is taken from one stream before the others get their turn.
SHARE = 1 << 18
# Streams that say a little very often are read at this pace, so that a read brings
# many lines: a terminal hands out single ones otherwise, at 20 us each.
PACE_S = 0.001
FEW_BYTES = 2048


class Streams:
    """All stdouts and stderrs of a job that have not come to their end."""

    def __init__(self, router: OutputRouter) -> None:
        self._router = router
        self._open: dict[int, tuple[int, str]] = {}
        # Since the last pause for breath.
        self._reads = self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._open)

    def open(self, descriptor: int, rank: int, stream: str) -> None:
        os.set_blocking(descriptor, False)
        self._open[descriptor] = (rank, stream)
        self._router.open(rank, stream)

    def readers(self) -> Iterator[int]:
        """Yield what to read from: nothing while the terminal cannot keep up."""
        if not self._router.full:
            yield from self._open

    def read(self, descriptor: int) -> None:
        taken = 0
        while taken < SHARE:
            try:
                data = os.read(descriptor, SHARE)
            except BlockingIOError:
                return
            except OSError:  # what a terminal says when its last writer is gone
                data = b""
            if not data:
                self._close(descriptor)
                return
            taken += len(data)
            self._reads += 1
            self._bytes += len(data)
            self._router.feed(*self._open[descriptor], data, time.monotonic())

    def resize(self, size: tuple[int, int]) -> None:
        """Give those that are terminals a size, in rows and columns."""
        for descriptor in self._open:
            if os.isatty(descriptor):
                termios.tcsetwinsize(descriptor, size)

    def take_breath(self) -> None:
        """Wait a moment if the last reads have brought little each."""
        if self._reads and self._bytes < FEW_BYTES * self._reads:
            time.sleep(PACE_S)
        self._reads = self._bytes = 0

    def close(self) -> None:
        """Give up those that are open still."""
        for descriptor in list(self._open):
            self._close(descriptor)

    def _close(self, descriptor: int) -> None:
        self._router.close(*self._open.pop(descriptor))
        os.close(descriptor)
