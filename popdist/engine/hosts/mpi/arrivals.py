"""The TCP connections of this process: by these MPI gets what other hosts send.

MPI reads them. The core looks at them: to sleep until one has data, and to see that one
has hung up before it sends anything.
"""

import os
import select
import socket
from collections.abc import Set
from contextlib import suppress
from threading import Lock
from time import monotonic

# How often to look for sockets that are new.
_REFRESH_SECONDS = 0.05


class Arrivals:
    """Epolls of the TCP connections of this process, as far as it knows them."""

    def __init__(self, mpi_ports: Set[int] = frozenset()) -> None:
        """Find the connections that there are.

        Args:
            mpi_ports: The ports on which MPI listens, in any process of the job. If a
                connection to one of them hangs up, that is reported.
        """
        self._ports = mpi_ports
        self._epoll = select.epoll()
        self._known: dict[int, str] = {}
        self._refreshing = Lock()
        self._refreshed = 0.0
        # Duplicates of MPI's connections: it closes its own when the peer hangs up.
        self._hangups = select.epoll()
        self._duplicates: set[int] = set()
        self._hung_up_since = 0.0
        self.refresh()

    def fileno(self) -> int:
        """Return the descriptor of the epoll of all connections."""
        return self._epoll.fileno()

    def hangups_fileno(self) -> int:
        """Return the descriptor of the hangups' epoll; -1 if it has none to report."""
        return self._hangups.fileno() if self._ports else -1

    def refresh(self) -> None:
        """Look for connections that are new."""
        if monotonic() - self._refreshed < _REFRESH_SECONDS:
            return
        if not self._refreshing.acquire(blocking=False):
            return
        try:
            self._refreshed = monotonic()
            sockets = {
                fd: link
                for fd, link in _sockets().items()
                if fd not in self._duplicates
            }
            for fd, link in sockets.items():
                if self._known.get(fd) != link:
                    with suppress(OSError):
                        self._add(fd)
            self._known = sockets
        finally:
            self._refreshing.release()

    def _add(self, fd: int) -> None:
        ends = _ports_of_connection(fd)
        if ends is None:
            return
        self._epoll.register(fd, select.EPOLLIN)
        if not self._ports.isdisjoint(ends):
            duplicate = os.dup(fd)
            self._duplicates.add(duplicate)
            self._hangups.register(duplicate, select.EPOLLRDHUP)

    def hangups(self) -> tuple[int, float]:
        """Return how many connections of MPI have hung up, and since when."""
        count = len(self._hangups.poll(0))
        if not count:
            self._hung_up_since = 0.0
        elif not self._hung_up_since:
            self._hung_up_since = monotonic()
        return count, self._hung_up_since

    def forget_hangups(self) -> None:
        """Report those connections no more that have hung up so far."""
        for fd, _ in self._hangups.poll(0):
            with suppress(OSError):  # another thread has done so
                self._hangups.unregister(fd)
                os.close(fd)
                self._duplicates.discard(fd)


def listening_ports() -> set[int]:
    """Return the TCP ports on which this process listens."""
    ports = set()
    for fd in _sockets():
        with suppress(OSError), socket.socket(fileno=os.dup(fd)) as other:
            is_tcp = other.family in (socket.AF_INET, socket.AF_INET6)
            if is_tcp and other.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                ports.add(other.getsockname()[1])
    return ports


def _sockets() -> dict[int, str]:
    """Return the identifier of each socket of this process, by its descriptor."""
    sockets = {}
    with suppress(OSError):  # there may be no descriptor left
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                link = os.readlink(f"/proc/self/fd/{name}")
                if link.startswith("socket:"):
                    sockets[int(name)] = link
    return sockets


def _ports_of_connection(fd: int) -> tuple[int, int] | None:
    """Return the ports of both ends of a TCP connection; None for other sockets."""
    with suppress(OSError), socket.socket(fileno=os.dup(fd)) as other:
        is_tcp = other.family in (socket.AF_INET, socket.AF_INET6)
        if is_tcp and other.type == socket.SOCK_STREAM:
            return other.getsockname()[1], other.getpeername()[1]
    return None
