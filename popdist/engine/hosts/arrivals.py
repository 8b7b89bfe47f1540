"""Sleeping until data may have come from another host.

MPI tells nothing of that: it must be polled. Where it goes over TCP, the sockets of
this process tell it; MPI reads them, and here they are only looked at. Where it does
not, sleeps are short.
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
# So many waits in a row whose data has come while no socket told it show that it goes
# another way. Then sleeps are short, until sockets get another chance after so many.
_MOST_MISSED, _MOST_BLIND = 3, 5000
# How long a sleep without sockets lasts, at first, and how much longer the next one.
_BLIND_SECONDS, _GROWTH = 0.00005, 1.05


class Arrivals:
    """The TCP connections of this process, and a sleep until one has data."""

    def __init__(self) -> None:
        self._epoll: select.epoll | None = None
        self._known: dict[int, str] = {}
        self._refreshed = 0.0
        self._in_vain = 0
        # Whether the last sleep lasted as long as it might, and how many waits in a row
        # ended with such a sleep.
        self._slept_through = False
        self._missed = 0
        self._blind = 0
        self._blind_seconds = _BLIND_SECONDS

    def succeeded(self) -> None:
        """Note that what was waited for has come."""
        self._in_vain = 0
        self._missed = self._missed + 1 if self._slept_through else 0
        self._slept_through = False
        self._blind_seconds = _BLIND_SECONDS

    def sleep(self, seconds: float) -> None:
        """Sleep until data may have come, and not longer than this."""
        now = monotonic()
        if now - self._refreshed > _REFRESH_SECONDS:
            self._refreshed = now
            self._refresh()
        is_blind = self._in_vain > _MOST_IN_VAIN or self._missed > _MOST_MISSED
        if self._epoll is None or is_blind:
            self._sleep_blind(seconds)
        elif self._epoll.poll(seconds, 1):
            self._in_vain += 1
            self._slept_through = False
        else:
            self._slept_through = True

    def _sleep_blind(self, seconds: float) -> None:
        """Sleep without a look at sockets."""
        sleep(min(seconds, self._blind_seconds))
        self._blind_seconds *= _GROWTH
        # So that this wait, if it ends now, changes nothing of what is known.
        self._slept_through = True
        self._blind += 1
        if self._blind > _MOST_BLIND:
            self._blind = self._missed = 0

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
