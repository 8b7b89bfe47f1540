"""Sleeping until data may have come from another host.

MPI tells nothing of that: it must be polled. Where it goes over TCP, the sockets of
this process tell it; MPI reads them, and here they are only looked at. Where it does
not, a sleep lasts as long as it may.
"""

import os
import select
import socket
from contextlib import suppress
from time import monotonic, sleep

# How often to look for sockets that are new.
_REFRESH_SECONDS = 0.05
# So many sleeps that end because of a socket, with nothing for the caller, show that
# the data there is not for MPI.
_MOST_IN_VAIN = 200


class Arrivals:
    """The TCP connections of this process, and a sleep until one has data."""

    def __init__(self) -> None:
        self._epoll: select.epoll | None = None
        self._known: dict[int, str] = {}
        self._refreshed = 0.0
        self._in_vain = 0

    def succeeded(self) -> None:
        """Note that what was waited for has come."""
        self._in_vain = 0

    def sleep(self, seconds: float) -> None:
        """Sleep until data may have come, and not longer than this."""
        now = monotonic()
        if now - self._refreshed > _REFRESH_SECONDS:
            self._refreshed = now
            self._refresh()
        if self._epoll is None or self._in_vain > _MOST_IN_VAIN:
            sleep(seconds)
        elif self._epoll.poll(seconds, 1):
            self._in_vain += 1

    def close(self) -> None:
        """Close the descriptor by which sockets are looked at."""
        if self._epoll is not None:
            self._epoll.close()
            self._epoll = None

    def _refresh(self) -> None:
        """Look at all TCP connections that this process has by now."""
        found = {}
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                link = os.readlink(f"/proc/self/fd/{name}")
                if link.startswith("socket:"):
                    found[int(name)] = link
        if found == self._known:
            return
        if self._epoll is None:
            self._epoll = select.epoll()
        for fd, link in found.items():
            if self._known.get(fd) != link and _is_connection(fd):
                with suppress(OSError):
                    self._epoll.register(fd, select.EPOLLIN)
        self._known = found


def _is_connection(fd: int) -> bool:
    """Return whether a descriptor is of a TCP connection."""
    with suppress(OSError), socket.socket(fileno=os.dup(fd)) as other:
        if other.family in (socket.AF_INET, socket.AF_INET6):
            other.getpeername()
            return other.type == socket.SOCK_STREAM
    return False
