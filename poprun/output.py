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
# A stream that has more than this to say waits for nobody, nor for a line's end.
MOST_WAITING = 1 << 16

FOREVER = float("inf")


class _Stream:
    __slots__ = ("ended", "since", "tag", "waiting")

    def __init__(self, tag: bytes) -> None:
        self.tag = tag
        self.waiting = b""  # not on the console yet
        self.since = 0.0  # when the oldest of it came
        self.ended = False

    def whole(self) -> int:
        """Return how much of what waits is whole: its lines, or its last words."""
        return len(self.waiting) if self.ended else self.waiting.rfind(b"\n") + 1


class Console:
    """One console line, and the streams that write to it."""

    def __init__(self) -> None:
        self._streams: dict[Hashable, _Stream] = {}
        # Whose partial line is on the console, if any.
        self._owner: Hashable | None = None
        self._mid_line = False
        self._out: list[tuple[Hashable, bytes]] = []

    def open(self, key: Hashable, tag: bytes = b"") -> None:
        """Add a stream; each of its lines will begin with the tag."""
        self._streams[key] = _Stream(tag)

    def feed(self, key: Hashable, data: bytes, now: float) -> None:
        """Take in what a stream has said."""
        stream = self._streams[key]
        if not stream.waiting:
            stream.since = now
        stream.waiting += data
        may_write = self._is_free_for(key) or len(stream.waiting) > MOST_WAITING
        if may_write and self._put(key, stream.whole()):
            stream.since = now
        if len(stream.waiting) > MOST_WAITING:
            self._put(key, len(stream.waiting))
        self._let_others()

    def close(self, key: Hashable) -> None:
        """Take the end of a stream: its last words need no line's end to be whole."""
        self._streams[key].ended = True
        if self._is_free_for(key):
            self._put(key, self._streams[key].whole())
            self._owner = None
        self._let_others()
        self._streams = {
            k: s for k, s in self._streams.items() if s.waiting or not s.ended
        }

    def tick(self, now: float) -> None:
        """Put out what has waited for long enough."""
        for key, stream in self._streams.items():
            if self._is_free_for(key):
                if now >= stream.since + PARTIAL_PATIENCE_S:
                    self._put(key, len(stream.waiting))
            elif now >= stream.since + LINE_PATIENCE_S:
                self._put(key, stream.whole())
        self._let_others()

    def deadline(self) -> float:
        """Return when the next tick is due."""
        due = FOREVER
        for key, stream in self._streams.items():
            if not stream.waiting:
                continue
            if self._is_free_for(key):
                due = min(due, stream.since + PARTIAL_PATIENCE_S)
            elif stream.whole():
                due = min(due, stream.since + LINE_PATIENCE_S)
        return due

    def take(self) -> list[tuple[Hashable, bytes]]:
        """Return what is to be written now, and by which stream it came."""
        out, self._out = self._out, []
        return out

    def interrupt(self) -> bytes:
        """Return what must come before words that are no stream's."""
        before = b"\n" if self._mid_line else b""
        self._owner, self._mid_line = None, False
        return before

    def _is_free_for(self, key: Hashable) -> bool:
        return self._owner in (None, key)

    def _let_others(self) -> None:
        """Give a line that has just ended to those who waited for it, in turn."""
        waiting = [(s.since, k, s) for k, s in self._streams.items() if s.waiting]
        for _, key, stream in sorted(waiting, key=lambda entry: entry[0]):
            if self._owner is None:
                self._put(key, stream.whole())

    def _put(self, key: Hashable, size: int) -> bool:
        """Write so much of what a stream has waiting, and note whose the line is."""
        if not size:
            return False
        stream = self._streams[key]
        data, stream.waiting = stream.waiting[:size], stream.waiting[size:]
        self._mid_line = not data.endswith(b"\n")
        if stream.tag:
            lines = data[:-1].replace(b"\n", b"\n" + stream.tag) + data[-1:]
            data = lines if self._owner == key else stream.tag + lines
        self._owner = key if self._mid_line and not stream.ended else None
        self._out.append((key, data))
        return True
