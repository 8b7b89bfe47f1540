"""uvicorn with limits for clients that are slow, many or endless.

uvicorn and h11 read a connection's next request when the reply to the one before has
been sent, and limit the length of a head. They know no time limit for a request or for
a reply, and no limit for all connections together: those are here.
"""

import asyncio
import socket
import sys
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from poprun.texts.stdout import write
from poprun.vipu.client.server_address import is_loopback

# In seconds: for the head of a request to come, or its body, or the handshake of TLS;
# for a reply to be made and taken; and for a connection without either.
REQUEST_TIMEOUT_S = 20.0
REPLY_TIMEOUT_S = 60.0
IDLE_S = 75
# For requests that are being answered when the server is to stop.
GRACE_S = 5
BACKLOG = 1024
MOST_HEAD_BYTES = 32768
# One other machine may have this part of all connections.
SHARE_OF_A_MACHINE = 4
# What all connections may hold together: requests, and replies that are not taken.
MOST_HELD_BYTES = 256 << 20
# uvicorn's ticks, and how many of them pass between two checks of the connections.
TICK_S = 0.1
CHECK_TICKS = 5


class Listener(socket.socket):
    """A listening socket that closes connections beyond a limit, before TLS."""

    def __init__(self, listening: socket.socket, most_connections: int) -> None:
        super().__init__(fileno=listening.detach())
        self._most_connections = most_connections
        self._machines: dict[socket.socket, str] = {}

    def accept(self) -> tuple[socket.socket, Any]:
        connection, address = super().accept()
        self._machines = {s: m for s, m in self._machines.items() if s.fileno() >= 0}
        if not self._has_room_for(address[0]):
            connection.close()
            raise ConnectionAbortedError  # the event loop goes on
        self._machines[connection] = address[0]
        return connection, address

    def _has_room_for(self, machine: str) -> bool:
        machines = list(self._machines.values())
        if len(machines) >= self._most_connections:
            return False
        if is_loopback(machine):  # many users share it
            return True
        share = max(1, self._most_connections // SHARE_OF_A_MACHINE)
        return machines.count(machine) < share


class HttpServer(uvicorn.Server):
    """A server on a listening socket, with limits of time and memory.

    Args:
        config: uvicorn's, loaded.
        listener: Where it serves.
        start_line: What it prints when it serves.
    """

    def __init__(
        self, config: uvicorn.Config, listener: Listener, start_line: str
    ) -> None:
        super().__init__(config)
        self._listener = listener
        self._start_line = start_line
        # What each connection waits for, and for how many checks.
        self._waits: dict[H11Protocol, tuple[tuple[float, object], int]] = {}

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve as uvicorn does, with a time limit for the handshake of TLS."""
        await super().startup([])
        server = await asyncio.get_running_loop().create_server(
            lambda: H11Protocol(self.config, self.server_state, self.lifespan.state),
            sock=self._listener,
            ssl=self.config.ssl,
            backlog=BACKLOG,
            ssl_handshake_timeout=REQUEST_TIMEOUT_S if self.config.ssl else None,
        )
        self.servers.append(server)
        if sys.stdout is not None:
            write(f"{self._start_line}\n")

    def handle_exit(self, sig: int, frame: object) -> None:
        """Stop at a signal; uvicorn itself would raise it again at the end."""
        self.should_exit = True

    async def on_tick(self, counter: int) -> bool:
        if counter % CHECK_TICKS == 0:
            connections: Any = self.server_state.connections
            self._close_late(connections)
            _close_largest(connections)
        return await super().on_tick(counter)

    def _close_late(self, connections: set[H11Protocol]) -> None:
        # Checks are counted, and no seconds: those pass while the server is stopped,
        # when what clients have sent is not read.
        before, self._waits = self._waits, {}
        for connection in connections:
            wait = _wait(connection)
            last, checks = before.get(connection, (None, 0))
            checks = checks + 1 if wait == last else 0
            self._waits[connection] = (wait, checks)
            if checks * CHECK_TICKS * TICK_S > wait[0]:
                connection.transport.abort()


def _wait(connection: H11Protocol) -> tuple[float, object]:
    """Return for how long what is waited for may take, and the request before it."""
    cycle, state = connection.cycle, connection.conn.their_state
    is_answering = cycle is not None and not cycle.response_complete
    if state is h11.SEND_BODY:
        return REQUEST_TIMEOUT_S, cycle
    if is_answering or connection.transport.get_write_buffer_size():
        return REPLY_TIMEOUT_S, cycle
    if cycle is None or connection.conn.trailing_data[0]:
        return REQUEST_TIMEOUT_S, cycle
    return float("inf"), cycle  # until uvicorn's timeout of idle connections


def _close_largest(connections: set[H11Protocol]) -> None:
    """Close the connections that hold the most, if all together hold too much."""
    sizes = {connection: _held_bytes(connection) for connection in connections}
    held = sum(sizes.values())
    while held > MOST_HELD_BYTES:
        largest = max(sizes, key=sizes.__getitem__)
        held -= sizes.pop(largest)
        largest.transport.abort()


def _held_bytes(connection: H11Protocol) -> int:
    size = connection.transport.get_write_buffer_size()
    if connection.cycle is not None and not connection.cycle.response_complete:
        # The application counts the bytes of the request that it reads or answers.
        size += len(connection.cycle.body)
        size += connection.scope.get("state", {}).get("held_bytes", 0)
    return size
