"""The TCP connections of this process: by these MPI gets what other hosts send.

MPI reads them. The core looks at them, to sleep until one has data.
"""

import os
import select
import socket
from contextlib import suppress
from time import monotonic

# How often to look for sockets that are new.
_REFRESH_SECONDS = 0.05


class Arrivals:
    """An epoll of all TCP connections of this process, as far as it knows them."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._known: dict[int, str] = {}
        self._refreshed = 0.0
        self.refresh()

    def fileno(self) -> int:
        """Return the descriptor of the epoll."""
        return self._epoll.fileno()

    def refresh(self) -> None:
        """Look for connections that are new."""
        if monotonic() - self._refreshed < _REFRESH_SECONDS:
            return
        self._refreshed = monotonic()
        found = {}
        with suppress(OSError):  # there may be no descriptor left
            for name in os.listdir("/proc/self/fd"):
                with suppress(OSError):
                    link = os.readlink(f"/proc/self/fd/{name}")
                    if link.startswith("socket:"):
                        found[int(name)] = link
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
