"""A second kind of stream ends beside descriptors: frames of a connection, in memory.

A connection to another host carries all streams of its instances. A sender there may
have only so many bytes of a stream under way: it gets credit back when poprun has read
them. This file is all that such a kind needs; a host registers it by Streams.open and
StdinFeeder.add.
"""

from collections import deque

from poprun.output.stream_ends import InputSink, OutputSource

# What may be under way of each stream.
WINDOW = 1 << 12


class FramedSource:
    """poprun's end of a stream that an instance on another host writes."""

    descriptor = None

    def __init__(self) -> None:
        self.written = 0.0
        self._frames: deque[bytes] = deque()
        self.credit = WINDOW
        self.is_closed = False

    # --- The far end.

    def receive(self, data: bytes) -> bytes:
        """Take what the sender has credit for, as one frame; return the rest."""
        frame, rest = data[: self.credit], data[self.credit :]
        if frame:
            self.credit -= len(frame)
            self._frames.append(frame)
        return rest

    def receive_end(self) -> None:
        self._frames.append(b"")

    # --- The OutputSource.

    @property
    def has_data(self) -> bool:
        return bool(self._frames)

    def read(self, most: int) -> bytes | None:
        if not self._frames:
            return None
        frame = self._frames.popleft()
        self.credit += len(frame)
        return frame

    def resize(self, size: tuple[int, int]) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True


class FramedSink:
    """poprun's end of the standard input of an instance on another host."""

    descriptor = None

    def __init__(self) -> None:
        self.credit = WINDOW
        self.frames: list[bytes] = []
        self.is_broken = self.is_closed = False

    def write(self, data: bytes) -> int:
        if self.is_broken:
            raise BrokenPipeError
        frame = data[: self.credit]
        if frame:
            self.credit -= len(frame)
            self.frames.append(frame)
        return len(frame)

    def close(self) -> None:
        self.is_closed = True


# The type checker compares them.
_: tuple[type[OutputSource], type[InputSink]] = (FramedSource, FramedSink)
