"""Many streams onto one console, line by line: (bytes, now) -> bytes. Pure.

A line goes out when it is whole, so that lines of two instances never mix. What is
not a line yet, a prompt or a progress bar, goes out too if it stays so for a moment;
from then on the console's line is taken, and others wait until it ends, but not for
long. Bytes are never changed, dropped or added, except for a tag before each line.
"""

from collections.abc import Hashable

# A partial line is shown when it has been one for so long.
PARTIAL_PATIENCE_S = 0.05
# So long do whole lines wait for somebody else's partial line to end.
LINE_PATIENCE_S = 0.2
# A partial line longer than this is not waited for.
LONGEST_PARTIAL = 1 << 16

FOREVER = float("inf")


class _Stream:
    __slots__ = ("since", "tag", "waiting")

    def __init__(self, tag: bytes) -> None:
        self.tag = tag
        self.waiting = b""  # not on the console yet
        self.since = FOREVER  # when the oldest of it came


class Console:
    """One console line, and the streams that write to it."""

    def __init__(self) -> None:
        self._streams: dict[Hashable, _Stream] = {}
        # Whose partial line is on the console, if any.
        self._owner: Hashable | None = None
        self._out: list[tuple[Hashable, bytes]] = []
        self.mid_line = False

    def open(self, key: Hashable, tag: bytes = b"") -> None:
        """Add a stream; each of its lines will begin with the tag."""
        self._streams[key] = _Stream(tag)

    def feed(self, key: Hashable, data: bytes, now: float) -> None:
        """Take in what a stream has said."""
        stream = self._streams[key]
        if not stream.waiting:
            stream.since = now
        stream.waiting += data
        if self._owner in (None, key):
            self._put_lines(key, stream, now)
        if len(stream.waiting) > LONGEST_PARTIAL and self._owner in (None, key):
            self._put_all(key, stream)
        self._let_others(now)

    def close(self, key: Hashable) -> None:
        """Take the end of a stream: what it still has goes out as it is."""
        self._put_all(key, self._streams.pop(key))
        if self._owner == key:
            self._owner = None

    def tick(self, now: float) -> None:
        """Put out what has waited for long enough."""
        for key, stream in list(self._streams.items()):
            if not stream.waiting:
                continue
            free = self._owner in (None, key)
            if free and now >= stream.since + PARTIAL_PATIENCE_S:
                self._put_all(key, stream)
            elif now >= stream.since + LINE_PATIENCE_S:
                if b"\n" in stream.waiting:
                    self._owner = None
                    self._put_lines(key, stream, now)
                elif len(stream.waiting) > LONGEST_PARTIAL:
                    self._put_all(key, stream)
        self._let_others(now)

    def deadline(self) -> float:
        """Return when the next tick is due."""
        due = FOREVER
        for key, stream in self._streams.items():
            if not stream.waiting:
                continue
            if self._owner in (None, key):
                due = min(due, stream.since + PARTIAL_PATIENCE_S)
            elif b"\n" in stream.waiting or len(stream.waiting) > LONGEST_PARTIAL:
                due = min(due, stream.since + LINE_PATIENCE_S)
        return due

    def take(self) -> list[tuple[Hashable, bytes]]:
        """Return what is to be written now, and by which stream it came."""
        out, self._out = self._out, []
        return out

    def _let_others(self, now: float) -> None:
        """Give a line that has just ended to those who waited for it, in turn."""
        waiting = [(s.since, k, s) for k, s in self._streams.items() if s.waiting]
        for _, key, stream in sorted(waiting, key=lambda entry: entry[0]):
            if self._owner is None:
                self._put_lines(key, stream, now)

    def _put_lines(self, key: Hashable, stream: _Stream, now: float) -> None:
        end = stream.waiting.rfind(b"\n") + 1
        if end:
            lines, stream.waiting = stream.waiting[:end], stream.waiting[end:]
            self._put(key, stream.tag, lines)
            stream.since = now

    def _put_all(self, key: Hashable, stream: _Stream) -> None:
        if stream.waiting:
            self._put(key, stream.tag, stream.waiting)
            stream.waiting, stream.since = b"", FOREVER

    def _put(self, key: Hashable, tag: bytes, data: bytes) -> None:
        self.mid_line = not data.endswith(b"\n")
        if tag:
            lines = data[:-1].replace(b"\n", b"\n" + tag) + data[-1:]
            data = lines if self._owner == key else tag + lines
        self._owner = key if self.mid_line else None
        self._out.append((key, data))
