"""The streams of a host's instances, between their descriptors and the connection.

Of each stream only so many bytes may be under way: poprun grants more when it has read
what it has got, so an instance waits when poprun's readers do.
"""

import os
from collections.abc import Collection, Iterator
from functools import partial

from poprun.output.stream_ends import STREAMS, DescriptorSink, OutputSource
from poprun.output.waiter import READ, WRITE, Interest
from poprun.wire import messages, protocol
from poprun.wire.channel import Channel

PIECE = 1 << 16


class ForwardedOutput:
    """The stdouts and stderrs of the host's instances: read and sent to poprun."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._open: dict[tuple[int, int], OutputSource] = {}
        self._credit: dict[tuple[int, int], int] = {}

    def __bool__(self) -> bool:
        return bool(self._open)

    def open(self, source: OutputSource, rank: int, stream: str) -> None:
        """Read a stream of an instance from now on."""
        key = rank, STREAMS.index(stream)
        self._open[key] = source
        self._credit[key] = messages.OUTPUT_WINDOW
        self._channel.send(protocol.pack(messages.STREAM_OPENED, *key))

    def grant(self, rank: int, stream: int, num_bytes: int) -> None:
        """Let so many bytes more of a stream be sent."""
        self._credit[rank, stream] = self._credit.get((rank, stream), 0) + num_bytes

    def resize(self, size: tuple[int, int]) -> None:
        for source in self._open.values():
            source.resize(size)

    def interests(self) -> Iterator[Interest]:
        for key, source in self._open.items():
            if self._credit[key] > 0 and source.descriptor is not None:
                yield Interest(source.descriptor, READ, partial(self._read, key))

    def _read(self, key: tuple[int, int]) -> None:
        """Read and send a piece."""
        source = self._open[key]
        data = source.read(self._credit[key])
        if data is None:
            return
        self._credit[key] -= len(data)
        self._send(key, source, data)
        if not data:
            self._open.pop(key).close()

    def send_rest(self) -> None:
        """Send what is left in the streams of instances that have ended.

        poprun ends the connection after that, although it may not have read what it has
        got already.
        """
        for key, source in list(self._open.items()):
            rest = messages.LAST_OUTPUT
            while rest > 0 and (data := source.read(min(rest, PIECE))):
                rest -= len(data)
                self._send(key, source, data)
            self._send(key, source, b"")
        self.close()

    def close(self) -> None:
        for source in self._open.values():
            source.close()
        self._open.clear()

    def _send(self, key: tuple[int, int], source: OutputSource, data: bytes) -> None:
        written = int(source.written * 1000)
        self._channel.send(protocol.pack(messages.OUTPUT, *key, data, written))


class ForwardedInput:
    """The standard inputs of the host's instances: what poprun sends, in pipes.

    Args:
        ranks: The instances to which poprun sends something.
    """

    def __init__(self, channel: Channel, ranks: Collection[int]) -> None:
        self._channel = channel
        self._ranks = ranks
        self._sinks: dict[int, DescriptorSink] = {}
        # What an instance has not taken yet.
        self._pending: dict[int, bytes] = {}
        # Whose input ends when they have taken what is pending.
        self._ending: set[int] = set()

    def descriptor_for(self, rank: int) -> int | None:
        """Return what an instance of this host reads, if poprun sends it anything."""
        if rank not in self._ranks:
            return None
        read, write = os.pipe()
        self._sinks[rank] = DescriptorSink(write)
        self._pending.setdefault(rank, b"")
        self._channel.send(protocol.pack(messages.STDIN_TAKEN, rank, 0))
        return read

    def receive(self, rank: int, data: bytes) -> None:
        """Take in what poprun has sent to an instance; nothing at the end."""
        if data:
            self._pending[rank] = self._pending.get(rank, b"") + data
        else:
            self._ending.add(rank)
        if rank in self._sinks:
            self._write(rank)

    def interests(self) -> Iterator[Interest]:
        for rank, sink in self._sinks.items():
            if self._pending[rank]:
                yield Interest(sink.descriptor, WRITE, partial(self._write, rank))

    def _write(self, rank: int) -> None:
        pending = self._pending[rank]
        try:
            taken = self._sinks[rank].write(pending) if pending else 0
        except OSError:  # the instance has closed its stdin, or ended
            self._channel.send(protocol.pack(messages.STDIN_TAKEN, rank, b""))
            self._close(rank)
            return
        self._pending[rank] = pending[taken:]
        if taken:
            self._channel.send(protocol.pack(messages.STDIN_TAKEN, rank, taken))
        if rank in self._ending and not self._pending[rank]:
            self._close(rank)

    def _close(self, rank: int) -> None:
        self._sinks.pop(rank).close()
        del self._pending[rank]

    def close(self) -> None:
        for rank in list(self._sinks):
            self._close(rank)
