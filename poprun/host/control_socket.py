"""The listening end of a host's control socket, and the connections that come by it.

Any user can connect to it, and a client can say anything or nothing: connections
without a proof that they belong to the job are bounded in number, size and time. The
first message of a connection has a kind, and the handler of that kind gets the
connection.
"""

import os
import select
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

from poprun.output.waiter import READ, WRITE, Interest
from poprun.wire import codec, protocol
from poprun.wire.channel import Channel, accept, listen, peer_of
from poprun.wire.events import AcceptFailed, Event, Rejected

# The connections that may be waiting for their first message, besides one for each
# instance. The oldest is closed when there are more.
MOST_UNKNOWN = 64
# A client sends its first message as soon as it has connected.
FIRST_MESSAGE_S = 60.0
# Between two attempts while there is no descriptor or no memory for a connection.
RETRY_S = 0.1
# How many connections are accepted before others get their turn.
SHARE = 64

Messages = list[tuple[int, list[bytes]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """The functions for all connections that begin with a message of one kind."""

    # Is called with the fields of the first message after the version and the key of
    # the job; returns whether the client belongs to the job.
    accept: Callable[[Channel, list[Any]], bool]
    # Is called with the further messages; with None when the client has closed.
    receive: Callable[[Channel, Messages | None], None] = lambda *_: None


class ControlSocket:
    """Accepts connections of poprun's own user, and reads them.

    Args:
        control: The address and the key.
        most_unknown: How many more connections than instances may be waiting for
            their first message.
    """

    def __init__(
        self, control: str, num_instances: int, *, most_unknown: int = MOST_UNKNOWN
    ) -> None:
        backlog = max(num_instances, SHARE)
        self._sock, self._key = listen(os.fsencode(control), backlog)
        self._most = num_instances + most_unknown
        # Connections without a first message, the oldest first, and until when.
        self._unknown: dict[Channel, float] = {}
        self._known: dict[Channel, Handler] = {}
        # The connections that their peers have closed, in the order of time: an epoll
        # keeps that order, and poll() does not.
        self._hangups = select.epoll()
        self._retry_at = 0.0

    def handle_with(
        self, handlers: Mapping[int, Handler], emit: Callable[[Event], None]
    ) -> None:
        """Set what happens to connections, before the first is accepted.

        Args:
            handlers: By the kind of a connection's first message.
            emit: Gets the events about connections that are closed.
        """
        self._handlers = handlers
        self._emit = emit

    def interests(self, now: float) -> Iterator[Interest]:
        """Yield the descriptors to wait for, in the order to serve them."""
        hangups, sock = self._hangups.fileno(), self._sock.fileno()
        yield Interest(hangups, READ, self.read_closed)
        if now >= self._retry_at:
            yield Interest(sock, READ, lambda: self.accept(time.monotonic()))
        for link in (*self._unknown, *self._known):
            if link.fileno() < 0:  # its handler has closed it
                del self._known[link]
                continue
            events = READ | (WRITE if link.has_unsent else 0)
            yield Interest(link.fileno(), events, partial(self._on_ready, link))

    def deadline(self, now: float) -> float:
        """Return when `tick` or another attempt to accept is due."""
        times = [*self._unknown.values()]
        if now < self._retry_at:
            times.append(self._retry_at)
        return min(times, default=inf)

    def tick(self, now: float) -> None:
        """Close the connections that have sent nothing for too long."""
        for link in [link for link, limit in self._unknown.items() if now >= limit]:
            self._reject(link, "it sent no message")

    def read_closed(self) -> None:
        """Read the connections that their peers have closed, in the order of time.

        When one client is killed, hydra kills others before poprun may come to look.
        """
        links = {link.fileno(): link for link in (*self._unknown, *self._known)}
        for descriptor, _ in self._hangups.poll(0):
            link = links.get(descriptor)
            while link is not None and link.fileno() >= 0:
                self._read(link)

    def close(self) -> None:
        for link in (*self._unknown, *self._known):
            link.close()
        self._hangups.close()
        self._sock.close()

    def accept(self, now: float) -> None:
        """Accept the connections that have come."""
        for _ in range(SHARE):
            try:
                sock = accept(self._sock)
            except (BlockingIOError, ConnectionAbortedError):
                break
            except OSError as error:
                # Out of descriptors or of memory.
                self._retry_at = now + RETRY_S
                self._emit(AcceptFailed(errno=error.errno or 0))
                break
            if (user := peer_of(sock)[1]) != os.geteuid():
                sock.close()
                self._emit(Rejected(why=f"it came from user {user}"))
                continue
            self._unknown[Channel(sock, protocol.MAX_REPORT)] = now + FIRST_MESSAGE_S
            # Edge-triggered: one comes up once, and data is none of its events.
            self._hangups.register(sock, select.EPOLLRDHUP | select.EPOLLET)
        while len(self._unknown) > self._most:
            why = f"{self._most} others had not identified themselves either"
            self._reject(next(iter(self._unknown)), why)

    def _reject(self, link: Channel, why: str) -> None:
        del self._unknown[link]
        link.close()
        self._emit(Rejected(why=why))

    def _on_ready(self, link: Channel) -> None:
        # More may have gone since the epoll was looked at, in an order of time.
        self.read_closed()
        if link.fileno() >= 0:  # it may have been closed since poll returned
            link.flush()
            self._read(link)

    def _read(self, link: Channel) -> None:
        messages = link.receive()
        if link in self._unknown and messages != []:
            messages = self._identify(link, messages)
        if link in self._known and messages != []:
            self._known[link].receive(link, messages)
        if messages is None:
            link.close()

    def _identify(self, link: Channel, messages: Messages | None) -> Messages | None:
        """Pass a connection to its handler; return the messages after the first."""
        kind, fields = messages[0] if messages else (0, [])
        try:
            version, key, *values = codec.read(kind, fields)
            has_key = (version, key) == (protocol.VERSION, self._key)
        except ValueError:
            has_key = False
        handler = self._handlers.get(kind)
        if handler is None or not has_key or not handler.accept(link, values):
            self._reject(link, "it did not prove that it belongs to the job")
            return None
        del self._unknown[link]
        self._known[link] = handler
        return messages[1:] if messages else None
