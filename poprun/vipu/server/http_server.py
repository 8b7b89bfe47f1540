"""HTTP/1.1 with limits for clients that are slow, many or endless; httptools parses it.

Each connection has one task, which reads a request, answers it, and waits until the
reply is taken. What comes meanwhile is not read, so that no client makes the server
keep more than one request and one reply.
"""

import asyncio
import logging
import ssl
from collections import deque
from email.utils import formatdate
from http import HTTPStatus
from socket import socket
from typing import Any
from urllib.parse import unquote

import httptools

from poprun.vipu.client.server_address import is_loopback
from poprun.vipu.server.application import (
    HttpRequest,
    HttpResponse,
    RequestError,
    Service,
)

# In seconds: for a whole request to come, head and body, for its reply to be made and
# taken, and for a connection without either.
REQUEST_TIMEOUT_S = 20.0
REPLY_TIMEOUT_S = 60.0
IDLE_S = 75.0
# For requests that are being answered when the server is to stop.
GRACE_S = 5.0
# How often the connections that have come to the end of their time are looked for.
CHECK_S = 0.5
BACKLOG = 1024
MOST_HEAD_BYTES = 32768
MOST_BODY_BYTES = 4 << 20
# One other machine may have this part of all connections.
SHARE_OF_A_MACHINE = 4
# So much is parsed at once: the requests in it are all kept until they are answered.
PIECE_BYTES = 1024
# What a parsed request takes, besides its body.
REQUEST_BYTES = 8192
# What all connections may hold together: requests, and replies that are not taken.
MOST_HELD_BYTES = 256 << 20
# A reply is taken when all but so much of it is.
UNTAKEN_BYTES = 4096

_log = logging.getLogger("vipu-server")
_access_log = logging.getLogger("vipu-server.access")


class HttpServer:
    """The connections of a service, within the limits of all of them together."""

    def __init__(
        self, service: Service, most_connections: int, context: ssl.SSLContext | None
    ) -> None:
        self.service = service
        self.most_connections = most_connections
        # Of TLS; None to speak without.
        self.context = context
        self.connections: set[HttpConnection] = set()
        self.held_bytes = 0
        # Now, as replies give it.
        self.date = formatdate(usegmt=True)

    async def serve(self, listener: socket, stop: asyncio.Event) -> None:
        """Serve what connects, until an event; then answer what has come as a whole."""
        loop = asyncio.get_running_loop()
        accept = loop.create_task(self._accept(listener))
        check = loop.create_task(self._check())
        await stop.wait()
        accept.cancel()
        listener.close()
        tasks = [connection.finish() for connection in set(self.connections)]
        if tasks:
            await asyncio.wait(tasks, timeout=GRACE_S)
        for task in (check, *tasks):
            task.cancel()

    async def _accept(self, listener: socket) -> None:
        """Accept connections, and count them before they agree on TLS."""
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        while True:
            try:
                accepted, address = await loop.sock_accept(listener)
            except OSError as error:  # there are no more descriptors
                _log.warning("A connection cannot be accepted: %s.", error.strerror)
                await asyncio.sleep(CHECK_S)
                continue
            connection = HttpConnection(self, address)
            if self._has_room_for(connection.machine):
                connection.start(accepted)
            else:
                accepted.close()

    async def _check(self) -> None:
        """Close the connections that have come to the end of their time."""
        while True:
            await asyncio.sleep(CHECK_S)
            self.date = formatdate(usegmt=True)
            now = asyncio.get_running_loop().time()
            for connection in set(self.connections):
                if connection.deadline < now:
                    connection.abort()

    def _has_room_for(self, machine: str) -> bool:
        """Return whether one more connection, of a machine, is not one too many."""
        if len(self.connections) >= self.most_connections:
            return False
        if is_loopback(machine):  # many users share it
            return True
        same = sum(other.machine == machine for other in self.connections)
        return same < max(1, self.most_connections // SHARE_OF_A_MACHINE)

    def note_held(self, connection: "HttpConnection", size: int) -> None:
        """Note how much a connection holds; close the largest if it is too much."""
        self.held_bytes += size - connection.held_bytes
        connection.held_bytes = size
        while self.held_bytes > MOST_HELD_BYTES:
            max(self.connections, key=lambda each: each.held_bytes).abort()


class HttpConnection(asyncio.Protocol):
    """One connection. The methods `on_...` are what httptools calls while it parses."""

    def __init__(self, server: HttpServer, address: tuple[str, int]) -> None:
        # The machine at the other end, alone and with its port.
        self.machine = address[0]
        self._client = f"{address[0]}:{address[1]}"
        self._server = server
        # None until TLS has been agreed on. Any: asyncio has a type for each direction.
        self._transport: Any = None
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        # What has come and is not parsed yet.
        self._unparsed = bytearray()
        # Of which the rest has not come, and how long the head is that was parsed.
        self._request = HttpRequest()
        self._head_bytes = 0
        # Those to be answered, in their order; one that is refused is the last.
        self._requests: deque[HttpRequest] = deque()
        self._is_writable = True
        self._is_last = False
        self._waiter: asyncio.Future[None] | None = None
        self.held_bytes = 0
        self._end_in(REQUEST_TIMEOUT_S)

    def start(self, accepted: socket) -> None:
        """Serve an accepted connection."""
        self._server.connections.add(self)
        self._task = self._loop.create_task(self._serve(accepted))

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.set_write_buffer_limits(high=UNTAKEN_BYTES, low=0)

    def connection_lost(self, exc: Exception | None) -> None:
        self.abort()

    def data_received(self, data: bytes) -> None:
        self._unparsed += data
        self._transport.pause_reading()  # until it is parsed
        self._count_held()
        self._wake()

    def pause_writing(self) -> None:
        self._is_writable = False

    def resume_writing(self) -> None:
        self._is_writable = True
        self._wake()

    def finish(self) -> asyncio.Task[None]:
        """Answer what has come as a whole, and close; return what does it."""
        if not self._requests:
            self.abort()
        self._is_last = True
        return self._task

    def abort(self) -> None:
        """Close, whatever has not been sent, and hold nothing any more."""
        self._server.connections.discard(self)
        self._server.note_held(self, 0)
        if self._transport is None:
            self._task.cancel()
        else:
            self._transport.abort()
        self._wake()

    async def _serve(self, accepted: socket) -> None:
        """Answer the requests of the connection, one after the other."""
        try:
            # The deadline of the first request ends the handshake of TLS, too.
            await self._loop.connect_accepted_socket(
                lambda: self, accepted, ssl=self._server.context
            )
            while request := await self._next_request():
                self._end_in(REPLY_TIMEOUT_S)
                response = await self._server.service.respond(request)
                status = response.status
                _access_log.info('%s - "%s" %d', self._client, request, status)
                if self._transport.is_closing():
                    return
                self._is_last |= request.is_last
                self._transport.write(self._head_of(response))
                if request.method != "HEAD":
                    self._transport.write(response.body)
                while not (self._is_writable or self._transport.is_closing()):
                    await self._wait()
                self._requests.popleft()
                self._count_held()
                self._end_in(REQUEST_TIMEOUT_S if self._request.url else IDLE_S)
        except OSError:
            pass  # the other end has gone, or does not agree on TLS
        except Exception:  # the server goes on with the other connections
            _log.exception("A connection failed.")
        finally:
            if self._transport is not None:
                self._transport.close()
            else:
                self._server.connections.discard(self)
                accepted.close()

    async def _next_request(self) -> HttpRequest | None:
        """Return the next request; None when the connection ends."""
        while not (self._is_last or self._transport.is_closing()):
            if self._requests:
                return self._requests[0]
            if self._unparsed:
                self._parse_piece()
                continue
            if self._request.headers.pop("expect", "").lower() == "100-continue":
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._transport.resume_reading()
            await self._wait()
        return None

    def _parse_piece(self) -> None:
        piece = bytes(self._unparsed[:PIECE_BYTES])
        del self._unparsed[:PIECE_BYTES]
        self._head_bytes += len(piece)
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            pass  # the request is answered in HTTP/1.1, as the last one
        except httptools.HttpParserError:
            self._refuse(400, "The request is not HTTP.")
        if not self._request.method and self._head_bytes > MOST_HEAD_BYTES:
            self._refuse(400, "The head of the request is too long.")
        if len(self._request.body) > MOST_BODY_BYTES:
            self._refuse(413, f"A request has at most {MOST_BODY_BYTES >> 20} MiB.")

    def _refuse(self, status: int, sentence: str) -> None:
        """Let the request that is parsed be refused, as the last one."""
        self._request.error = RequestError(status, sentence)
        self._request.is_last = True
        self._requests.append(self._request)

    def on_url(self, url: bytes) -> None:
        if not self._request.url:
            self._end_in(REQUEST_TIMEOUT_S)
        self._request.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._request.method:  # and not after a chunked body
            key = name.decode("latin-1").lower()
            self._request.headers[key] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._request.method = self._parser.get_method().decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._request.body += body

    def on_message_complete(self) -> None:
        request, self._request, self._head_bytes = self._request, HttpRequest(), 0
        request.path = unquote(httptools.parse_url(request.url).path.decode("latin-1"))
        request.version = self._parser.get_http_version()
        keeps_alive = request.version == "1.1" and self._parser.should_keep_alive()
        request.is_last = not keeps_alive or self._parser.should_upgrade()
        self._requests.append(request)

    def _head_of(self, response: HttpResponse) -> bytes:
        headers = {
            "date": self._server.date,
            "content-type": response.content_type,
            "content-length": str(len(response.body)),
            **response.headers,
            **({"connection": "close"} if self._is_last else {}),
        }
        phrase = HTTPStatus(response.status).phrase
        lines = [f"HTTP/1.1 {response.status} {phrase}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")

    def _end_in(self, seconds: float) -> None:
        self.deadline = self._loop.time() + seconds

    def _count_held(self) -> None:
        if not self._transport.is_closing():
            size = self._transport.get_write_buffer_size()
            size += len(self._unparsed) + len(self._request.body)
            size += sum(len(each.body) + REQUEST_BYTES for each in self._requests)
            self._server.note_held(self, size)

    async def _wait(self) -> None:
        """Wait until more comes, a reply is taken, or the connection ends."""
        self._waiter = self._loop.create_future()
        await self._waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
