"""Reads the instances' streams, and passes their bytes to the output router."""

import time
from collections.abc import Iterator
from functools import partial
from math import inf

from poprun.output.output_tap import OutputTap
from poprun.output.router import OutputRouter
from poprun.output.stream_ends import OutputSource
from poprun.output.waiter import READ, Interest

# How much is taken from one stream before the others get their turn.
SHARE = 1 << 18
# Streams with many short writes are read at this pace, so that a read brings many
# lines: a terminal hands out single lines otherwise, at 20 us each.
PACE_S = 0.001
FEW_BYTES = 2048


class Streams:
    """All stdouts and stderrs of a job that have not come to their end.

    None of them is read while the readers of poprun's output cannot keep up.
    """

    def __init__(self, router: OutputRouter, tap: OutputTap | None = None) -> None:
        self._router = router
        self._tap = tap or OutputTap()
        # By source: the rank of its instance, and the name of the stream.
        self._open: dict[OutputSource, tuple[int, str]] = {}
        # Since the last pause.
        self._reads = self._bytes = 0
        # How many bytes have come by connections to other hosts.
        self.received = 0

    def __bool__(self) -> bool:
        return bool(self._open)

    def has_open(self, rank: int) -> bool:
        """Return whether a stream of an instance has not come to its end."""
        return any(rank == other for other, _ in self._open.values())

    def open(self, source: OutputSource, rank: int, stream: str) -> None:
        """Read a stream of an instance from now on."""
        self._open[source] = (rank, stream)
        self._router.open(rank, stream)
        self._tap.open(rank)

    def interests(self) -> Iterator[Interest]:
        """Yield what to wait for in order to read."""
        if self._router.full:
            return
        for source in self._open:
            if source.descriptor is not None:
                call = partial(self._read, source)
                yield Interest(source.descriptor, READ, call)

    def deadline(self) -> float:
        """Return when `tick` is due even if nothing happens."""
        return 0.0 if self._sources_with_data() else inf

    def tick(self) -> None:
        """Read the bytes that have come by connections to other hosts."""
        for source in self._sources_with_data():
            self._read(source)

    def resize(self, size: tuple[int, int]) -> None:
        """Give those that are terminals a size, in rows and columns."""
        for source in self._open:
            source.resize(size)

    def pause_if_little_came(self) -> None:
        """Wait a moment if the last reads have brought little each."""
        if self._reads and self._bytes < FEW_BYTES * self._reads:
            time.sleep(PACE_S)
        self._reads = self._bytes = 0

    def close(self) -> None:
        """Give up those that are open still."""
        for source in list(self._open):
            self._close(source)

    def _sources_with_data(self) -> list[OutputSource]:
        if self._router.full:
            return []
        return [s for s in self._open if s.descriptor is None and s.has_data]

    def _read(self, source: OutputSource) -> None:
        num_bytes = 0
        while num_bytes < SHARE:
            data = source.read(SHARE)
            if data is None:
                return
            if not data:
                self._close(source)
                return
            num_bytes += len(data)
            self._reads += 1
            self._bytes += len(data)
            if source.descriptor is None:
                self.received += len(data)
            key, now = self._open[source], time.monotonic()
            self._tap.feed(*key, data)
            self._router.feed(*key, data, now, source.written)

    def _close(self, source: OutputSource) -> None:
        rank, stream = self._open.pop(source)
        self._router.close(rank, stream)
        self._tap.close(rank, stream)
        source.close()
