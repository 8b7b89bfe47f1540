"""The streams of instances on another host: the agent's ends, and poprun's.

Only so many bytes of each stream may be under way: poprun grants more when it has read
the earlier ones, so an instance waits when poprun's readers do.
"""

import os
from collections import deque
from collections.abc import Callable, Collection, Iterator
from functools import partial

from poprun.output.stream_ends import STREAMS, DescriptorSink, OutputSource
from poprun.output.waiter import READ, WRITE, Interest
from poprun.wire import protocol
from poprun.wire.channel import PIECE

# Bytes of each output stream that may be under way: more follow when poprun has read.
OUTPUT_WINDOW = 1 << 18
# The rest of a stream after the end of its writers may be so much longer: the most that
# the kernel keeps in a pipe.
LAST_OUTPUT = 1 << 21
# Bytes of each standard input that may be under way.
INPUT_WINDOW = 1 << 16
# Sends a message to the other end: its kind and fields.
Send = Callable[..., None]


class ForwardedOutput:
    """The stdouts and stderrs of the agent's instances: read and sent to poprun."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._open: dict[tuple[int, int], OutputSource] = {}
        self._credit: dict[tuple[int, int], int] = {}

    def open(self, source: OutputSource, rank: int, stream: str) -> None:
        """Read a stream of an instance from now on."""
        key = rank, STREAMS.index(stream)
        self._open[key] = source
        self._credit[key] = OUTPUT_WINDOW
        self._send(protocol.STREAM_OPENED, *key)

    def grant(self, rank: int, stream: int, num_bytes: int) -> None:
        """Let so many bytes more of a stream be sent."""
        self._credit[rank, stream] = self._credit.get((rank, stream), 0) + num_bytes

    def resize(self, rank: int, stream: int, rows: int, columns: int) -> None:
        if (rank, stream) in self._open:
            self._open[rank, stream].resize((rows, columns))

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
        self._pass_on(key, source, data)
        if not data:
            self._open.pop(key).close()

    def send_rest(self) -> None:
        """Send the rest of the streams: all instances have ended.

        It needs no credit: poprun ends the connection after it, although its readers
        may be slow.
        """
        for key, source in self._open.items():
            rest = LAST_OUTPUT
            while rest > 0 and (data := source.read(min(rest, PIECE))):
                rest -= len(data)
                self._pass_on(key, source, data)
            self._pass_on(key, source, b"")
            source.close()
        self._open.clear()

    def _pass_on(self, key: tuple[int, int], source: OutputSource, data: bytes) -> None:
        self._send(protocol.OUTPUT, *key, data, int(source.written * 1000))


class ForwardedInput:
    """The standard inputs of the agent's instances: what poprun sends, in pipes.

    Args:
        ranks: The instances to which poprun sends something.
    """

    def __init__(self, send: Send, ranks: Collection[int]) -> None:
        self._send = send
        self._ranks = ranks
        self._sinks: dict[int, DescriptorSink] = {}
        # By instance: bytes that it has not taken yet.
        self._pending: dict[int, bytes] = {}
        # The instances that get no more input after the pending bytes.
        self._ending: set[int] = set()

    def descriptor_for(self, rank: int) -> int | None:
        """Return what an instance of this host reads, if poprun sends it anything."""
        if rank not in self._ranks:
            return None
        read, write = os.pipe()
        self._sinks[rank] = DescriptorSink(write)
        self._pending[rank] = b""
        self._send(protocol.INPUT_TAKEN, rank, 0)
        return read

    def receive(self, rank: int, data: bytes) -> None:
        """Take in what poprun has sent to an instance; nothing at the end."""
        if rank not in self._sinks:  # the instance takes nothing more
            return
        if data:
            self._pending[rank] += data
        else:
            self._ending.add(rank)
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
            self._send(protocol.INPUT_TAKEN, rank, b"")
            self._close(rank)
            return
        self._pending[rank] = pending[taken:]
        if taken:
            self._send(protocol.INPUT_TAKEN, rank, taken)
        if rank in self._ending and not self._pending[rank]:
            self._close(rank)

    def _close(self, rank: int) -> None:
        self._sinks.pop(rank).close()
        del self._pending[rank]


class RemoteSource:
    """poprun's end of a stream that an instance on another host writes."""

    descriptor = None

    def __init__(self, send: Send, rank: int, stream: int) -> None:
        self._send = send
        self._key = rank, stream
        # Pieces of the stream, and the time when each was written there.
        self._pieces: deque[tuple[bytes, float]] = deque()
        self.written = 0.0
        # How many bytes have come and have not been read.
        self._num_unread = 0
        self._has_ended = False

    def receive(self, data: bytes, written: float, most_unread: int) -> None:
        """Take in a piece of the stream; nothing at its end.

        Args:
            written: When it was written, in seconds since 1970.
            most_unread: How many bytes may have come and not been read.

        Raises:
            ValueError: The agent has sent more than it may.
        """
        if self._has_ended:
            return
        if self._num_unread + len(data) > most_unread:
            raise ValueError("more output than there is credit for")
        self._num_unread += len(data)
        self._has_ended = not data
        self._pieces.append((data, written))

    @property
    def has_data(self) -> bool:
        return bool(self._pieces)

    def read(self, most: int) -> bytes | None:
        if not self._pieces:
            return None
        data, self.written = self._pieces.popleft()
        self._num_unread -= len(data)
        if data:
            self._send(protocol.GRANT_OUTPUT, *self._key, len(data))
        return data

    def resize(self, size: tuple[int, int]) -> None:
        self._send(protocol.RESIZE, *self._key, *size)

    def close(self) -> None:
        """Drop what comes from now on."""
        self._has_ended = True
        self._pieces.clear()


class RemoteSink:
    """poprun's end of the standard input of an instance on another host."""

    descriptor = None

    def __init__(self, send: Send, rank: int) -> None:
        self._send = send
        self._rank = rank
        self._window = INPUT_WINDOW
        self._is_broken = False

    def take(self, num_bytes: int | None) -> None:
        """Take in how much the instance has taken; None: it takes nothing more."""
        if num_bytes is None:
            self._is_broken = True
        else:
            self._window = min(self._window + num_bytes, INPUT_WINDOW)

    def write(self, data: bytes) -> int:
        if self._is_broken:
            raise BrokenPipeError
        piece = data[: self._window]
        if piece:
            self._window -= len(piece)
            self._send(protocol.INPUT, self._rank, piece)
        return len(piece)

    def close(self) -> None:
        self._send(protocol.INPUT, self._rank, b"")
