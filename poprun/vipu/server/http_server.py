"""uvicorn with limits for clients that are slow, many or endless.

uvicorn and httptools parse all that has come of a connection, and queue its requests.
They know no limit for the length of a head, no time limit for a request or for a reply,
and no limit for all connections together: those are here.
"""

import asyncio
import logging
import socket
import ssl
import sys
from asyncio.sslproto import SSLProtocol
from functools import partial
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from poprun.texts.stdout import write
from poprun.vipu.client.server_address import is_loopback
from poprun.vipu.server.application import Service
from poprun.vipu.server.metrics import CONNECTIONS

# In seconds: for the head of a request to come, or its body, or the handshake of TLS;
# for a reply to be made and taken; and for a connection without either.
REQUEST_TIMEOUT_S = 20.0
REPLY_TIMEOUT_S = 60.0
IDLE_S = 75
# For requests that are being answered when the server is to stop.
GRACE_S = 5
BACKLOG = 1024
# So many connections are accepted, and so much is read of each, before it is the turn
# of others.
ACCEPTED_AT_ONCE = 16
READ_BYTES = 65536
# So much is parsed before it is asked whether a request in it has to be answered first:
# less than ten of the shortest requests.
PARSED_BYTES = 256
MOST_HEAD_BYTES = 32768
# Each takes ten times as much memory as the bytes of the shortest.
MOST_FIELDS = 100
# One other machine may have this part of all connections.
SHARE_OF_A_MACHINE = 4
# Memory of all connections together: requests, and replies that are not read.
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
        machine = address[0]
        if not self._has_room_for(machine):
            # Forget those that have been closed.
            open_ = {s: m for s, m in self._machines.items() if s.fileno() >= 0}
            self._machines = open_
            if not self._has_room_for(machine):
                connection.close()
                raise ConnectionAbortedError  # the event loop goes on
        self._machines[connection] = machine
        return connection, address

    def _has_room_for(self, machine: str) -> bool:
        if len(self._machines) >= self._most_connections:
            return False
        if is_loopback(machine):  # many users share it
            return True
        share = max(1, self._most_connections // SHARE_OF_A_MACHINE)
        return sum(other == machine for other in self._machines.values()) < share


class Connection(HttpToolsProtocol):
    """uvicorn's connection, which parses a request when those before are answered."""

    def __init__(self, server: "HttpServer") -> None:
        super().__init__(server.config, server.server_state, server.lifespan.state)
        self._server = server
        self.headers = []
        self._unparsed = bytearray()
        # How much has come since the last reply, and of a head without an end.
        self._received = self._head_bytes = 0
        # Whether a request has begun to come, and its head; they have not ended.
        self._is_coming = self._is_in_head = False
        self._wait: tuple[float, object] | None = None
        self._checks = 0

    @property
    def held_bytes(self) -> int:
        """The bytes of requests without a reply, and of replies that are not read."""
        return self._received + self.transport.get_write_buffer_size()

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        transport.max_size = READ_BYTES

    def connection_lost(self, exc: Exception | None) -> None:
        self._unparsed.clear()
        self._set_received(0)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._set_received(self._received + len(data))
        self._unparsed += data
        self._parse()
        if self._server.received_bytes > MOST_HELD_BYTES:
            self._server.close_largest()

    def on_message_begin(self) -> None:
        self._is_coming = self._is_in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._is_coming = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._set_received(len(self._unparsed))
        super().on_response_complete()
        self._parse()

    def close_if_late(self) -> None:
        """Close the connection if it has waited for one thing for too long.

        Checks are counted, and no seconds: those pass while the server is stopped and
        reads nothing that clients have sent.
        """
        wait = self._current_wait()
        self._checks = self._checks + 1 if wait == self._wait else 0
        self._wait = wait
        if self._checks * CHECK_TICKS * TICK_S > wait[0]:
            self.abort()

    def _parse(self) -> None:
        """Parse the bytes received, until a request has to be answered first."""
        while self._unparsed and not self.transport.is_closing():
            if self._is_answering():
                self.flow.pause_reading()
                return
            piece = bytes(self._unparsed[:PARSED_BYTES])
            del self._unparsed[:PARSED_BYTES]
            super().data_received(piece)
            self._head_bytes = self._head_bytes + len(piece) if self._is_in_head else 0
            # uvicorn adds the fields after a chunked body to the head.
            if self._head_bytes > MOST_HEAD_BYTES or len(self.headers) > MOST_FIELDS:
                self.send_400_response("The request has too many header fields.")

    def _is_answering(self) -> bool:
        """Return whether a request that has come to its end has no reply yet."""
        cycle: Any = self.cycle
        is_whole = cycle is not None and not cycle.more_body
        return bool(self.pipeline) or (is_whole and not cycle.response_complete)

    def _current_wait(self) -> tuple[float, object]:
        """Return the time limit of what it waits for, and its last request."""
        if self._is_answering() or self.transport.get_write_buffer_size():
            return REPLY_TIMEOUT_S, self.cycle
        if self._is_coming or self.cycle is None:
            return REQUEST_TIMEOUT_S, self.cycle
        return float("inf"), self.cycle  # until uvicorn's timeout of idle connections

    def abort(self) -> None:
        """Close it, and free what it has received."""
        self._unparsed.clear()
        self._set_received(0)
        self.transport.abort()
        if self.cycle is not None:
            self.cycle.body = bytearray()

    def _set_received(self, size: int) -> None:
        self._server.received_bytes += size - self._received
        self._received = size


class HttpServer(uvicorn.Server):
    """A server on a listening socket, with limits of time and memory.

    Args:
        service: The service that answers requests.
        listener: Where it serves.
        start_line: The line to print when it serves.
        context: Of TLS; None to speak without.
        access_log: Whether it logs each request.
    """

    def __init__(
        self,
        service: Service,
        listener: Listener,
        start_line: str,
        *,
        context: ssl.SSLContext | None,
        access_log: bool,
    ) -> None:
        # uvicorn would log each client that speaks no HTTP. The service logs its own
        # failures.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        config = uvicorn.Config(
            service.application(),
            loop="asyncio",
            http="httptools",
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=access_log,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=IDLE_S,
            timeout_graceful_shutdown=GRACE_S,
            ssl_context_factory=(lambda *_: context) if context else None,
        )
        super().__init__(config)
        CONNECTIONS.set_function(lambda: len(self.server_state.connections))
        self._listener = listener
        self._start_line = start_line
        # How much all connections have received and not answered.
        self.received_bytes = 0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve as uvicorn does, with a time limit for the handshake of TLS."""
        await super().startup([])
        # asyncio has a buffer of 256 KiB for each connection with TLS, idle ones too.
        SSLProtocol.max_size = READ_BYTES
        server = await asyncio.get_running_loop().create_server(
            partial(Connection, self),
            sock=self._listener,
            ssl=self.config.ssl,
            backlog=ACCEPTED_AT_ONCE,
            ssl_handshake_timeout=REQUEST_TIMEOUT_S if self.config.ssl else None,
        )
        self._listener.listen(BACKLOG)
        self.servers.append(server)
        if sys.stdout is not None:
            write(f"{self._start_line}\n")

    def handle_exit(self, sig: int, frame: object) -> None:
        """Stop at a signal; uvicorn itself would raise it again at the end."""
        self.should_exit = True

    async def on_tick(self, counter: int) -> bool:
        if counter % CHECK_TICKS == 0:
            for connection in self._connections():
                connection.close_if_late()
            self.close_largest()
        return await super().on_tick(counter)

    def close_largest(self) -> None:
        """Close the connections that hold the most, if all together hold too much."""
        sizes = {each: each.held_bytes for each in self._connections()}
        held = sum(sizes.values())
        for connection in sorted(sizes, key=sizes.__getitem__, reverse=True):
            if held <= MOST_HELD_BYTES:
                break
            held -= sizes[connection]
            connection.abort()

    def _connections(self) -> list[Connection]:
        connections: Any = self.server_state.connections
        return list(connections)
