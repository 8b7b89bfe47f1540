"""The connection to one client, for which a bounded number of bytes waits.

A client that does not read must not slow the job down or fill poprun's memory.
"""

import time
from math import inf

from poprun.wire import protocol
from poprun.wire.channel import Channel, peer_of

# So much may wait for a client, besides what the socket holds.
MOST_WAITING = 1 << 20
# How long a client may take to read the last that it is sent.
LAST_READ_S = 10.0


class ClientConnection:
    """The messages to one client."""

    def __init__(self, link: Channel) -> None:
        self.link = link
        self.pid = peer_of(link.sock)[0]
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
        return self.link.has_unsent

    def send(self, kind: int, *fields: bytes | int) -> None:
        """Send one of the few messages that are no output of an instance."""
        if self.is_open and self.closes_by == inf:
            self.link.send(protocol.pack(kind, *fields))

    def write(self, stream: str, data: bytes) -> None:
        """Send what an instance has written, unless too much waits already."""
        if self.link.num_unsent + len(data) > MOST_WAITING:
            self._num_dropped += len(data)
            return
        if self._num_dropped:
            # Its place is before what comes next.
            dropped, self._num_dropped = self._num_dropped, 0
            self.send(protocol.OUTPUT_DROPPED, dropped)
        self.send(protocol.INSTANCE_OUTPUT, stream.encode(), data)

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
        """Close the connection when its time has come."""
        if self.closes_by < inf and (not self.is_behind or now >= self.closes_by):
            self.link.close()
