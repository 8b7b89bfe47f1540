"""The connection to one client, with a bounded queue of messages to it.

A client that does not read must not slow the job down or fill poprun's memory.
"""

import time
from collections import deque
from math import inf

from poprun.wire import protocol
from poprun.wire.channel import Channel, peer_of

# So much may wait for a client, besides what the socket holds.
MOST_WAITING = 1 << 20
# How much is given to the socket at once.
SHARE = 1 << 16
# How long a client may take to read the last that it is sent.
LAST_READ_S = 10.0


class ClientConnection:
    """The messages to one client."""

    def __init__(self, link: Channel) -> None:
        self.link = link
        self.pid = peer_of(link.sock)[0]
        # Messages, and how many bytes they have together.
        self._waiting: deque[bytes] = deque()
        self._num_waiting = 0
        # How many bytes of output were dropped since the last note of that.
        self._num_dropped = 0
        # When it is closed at the latest, once it is sent nothing more.
        self.closes_by = inf

    @property
    def is_open(self) -> bool:
        return self.link.fileno() >= 0

    @property
    def is_behind(self) -> bool:
        """Whether it has not read all that it was sent."""
        return bool(self._waiting) or self.link.has_unsent

    def send(self, kind: int, *fields: bytes | int) -> None:
        """Send one of the few messages that are no output of an instance."""
        if self.is_open and self.closes_by == inf:
            self._waiting.append(message := protocol.pack(kind, *fields))
            self._num_waiting += len(message)
            self.flush()

    def write(self, stream: str, data: bytes) -> None:
        """Send what an instance has written, unless too much waits already."""
        if self._num_waiting + len(data) > MOST_WAITING:
            self._num_dropped += len(data)
            return
        if self._num_dropped:
            # Its place is before what comes next.
            dropped, self._num_dropped = self._num_dropped, 0
            self.send(protocol.OUTPUT_DROPPED, dropped)
        self.send(protocol.INSTANCE_OUTPUT, stream.encode(), data)

    def flush(self) -> None:
        """Send more, if the client has read what it was sent."""
        while self._waiting and not self.link.has_unsent:
            messages, size = [], 0
            while self._waiting and size < SHARE:
                messages.append(message := self._waiting.popleft())
                size += len(message)
            self._num_waiting -= size
            self.link.send(b"".join(messages))

    def finish(self, sentence: str = "") -> None:
        """Say that nothing more comes, and why; close when that has been read."""
        if self._num_dropped:
            self.send(protocol.OUTPUT_DROPPED, self._num_dropped)
        self.send(protocol.REQUEST_DONE, sentence.encode())
        self.close_after_reading()

    def refuse(self, sentence: str) -> None:
        """Say why a request is not carried out; close when that has been read."""
        self.send(protocol.REQUEST_REFUSED, sentence.encode())
        self.close_after_reading()

    def close_after_reading(self) -> None:
        self.closes_by = min(self.closes_by, time.monotonic() + LAST_READ_S)

    def tick(self, now: float) -> None:
        """Go on sending; close the connection when its time has come."""
        if self.is_open:
            self.flush()
        if self.closes_by < inf and (not self.is_behind or now >= self.closes_by):
            self.link.close()
