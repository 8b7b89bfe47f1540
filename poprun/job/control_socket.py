"""poprun's listening end of the control socket, and the connections that come by it.

Any user can connect to it, and a client can say anything or nothing: what has not
proved that it belongs to the job is bounded in number, in size and in time.
"""

import errno
import os
import select
import socket

from poprun.helpers import protocol
from poprun.helpers.channel import Channel, address_and_key, user_of

# The connections that may be waiting for their first message, besides one for each
# instance. The oldest is closed when there are more.
MOST_UNKNOWN = 64
# A client speaks as soon as it has connected.
FIRST_MESSAGE_S = 60.0
# Between two attempts while there is no descriptor or no memory for a connection.
RETRY_S = 0.1
# How many connections are accepted before others get their turn.
SHARE = 64


class ControlSocket:
    """Accepts connections of poprun's own user."""

    def __init__(self, control: str, num_instances: int) -> None:
        address, self.key = address_and_key(os.fsencode(control))
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sock.bind(address)
        self._sock.listen(max(num_instances, SHARE))
        self._sock.setblocking(False)
        self._most = num_instances + MOST_UNKNOWN
        # Connections without a first message, the oldest first, and until when.
        self.unknown: dict[Channel, float] = {}
        self._retry_at = 0.0

    def fileno(self) -> int:
        return self._sock.fileno()

    def is_listening(self, now: float) -> bool:
        return now >= self._retry_at

    def deadline(self, now: float) -> float:
        """Return when `expire` or another attempt to accept is due."""
        times = [*self.unknown.values()]
        if not self.is_listening(now):
            times.append(self._retry_at)
        return min(times, default=float("inf"))

    def accept(self, now: float) -> list[str]:
        """Accept what has come; return why connections were closed.

        Raises:
            OSError: Out of descriptors or of memory. It is tried again later.
        """
        closed = []
        for _ in range(SHARE):
            try:
                sock, _address = self._sock.accept()
            except (BlockingIOError, ConnectionAbortedError):
                break
            except OSError as error:
                if error.errno == errno.EINTR:
                    continue
                self._retry_at = now + RETRY_S
                raise
            if (user := user_of(sock)) != os.geteuid():
                closed.append(f"it came from user {user}")
                sock.close()
                continue
            self.unknown[Channel(sock, protocol.MAX_REPORT)] = now + FIRST_MESSAGE_S
        while len(self.unknown) > self._most:
            oldest = next(iter(self.unknown))
            del self.unknown[oldest]
            oldest.close()
            closed.append(f"{self._most} others had not said who they are either")
        return closed

    def expire(self, now: float) -> int:
        """Close the connections that have said nothing; return how many."""
        late = [link for link, limit in self.unknown.items() if now >= limit]
        for link in late:
            del self.unknown[link]
            link.close()
        return len(late)

    def close(self) -> None:
        for link in self.unknown:
            link.close()
        self.unknown.clear()
        self._sock.close()


class Hangups:
    """In which order connections have been closed by their peers.

    poll() tells of all that have been closed by now, in an order of its own. The
    kernel appends a descriptor to the list of an epoll when it becomes ready, so that
    list has the order of time.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()

    def fileno(self) -> int:
        return self._epoll.fileno()

    def watch(self, descriptor: int) -> None:
        """Take in a connection; closing it takes it out."""
        # Edge-triggered: a descriptor comes up once, and data is none of its events.
        self._epoll.register(descriptor, select.EPOLLRDHUP | select.EPOLLET)

    def come(self) -> list[int]:
        """Return what has been closed since the last call, the first one first."""
        return [descriptor for descriptor, _ in self._epoll.poll(0)]

    def close(self) -> None:
        self._epoll.close()
