"""uvicorn's HTTP protocol with limits for clients that are slow, many or endless.

uvicorn itself waits for a request as long as a client likes, keeps as much of its
head as it sends, parses all requests that it sends before it takes a reply, waits for
that for ever, and accepts connections until no file descriptor is left.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import (
    HttpToolsProtocol,
    RequestResponseCycle,
)

from poprun.vipu.client.server_address import is_loopback

# In seconds: for a whole request to come, head and body, and for its reply to go.
REQUEST_TIMEOUT_S = 20.0
REPLY_TIMEOUT_S = 60.0
MOST_HEAD_BYTES = 32768
# One other machine may have this part of all connections.
SHARE_OF_A_MACHINE = 4
# So much is parsed at once: a request that is being answered holds up those behind it,
# but for those that came in one piece with it.
PIECE_BYTES = 1024
# What a parsed request takes, besides its body.
REQUEST_BYTES = 8192
# What all connections may hold together: requests, and replies that are not taken.
MOST_HELD_BYTES = 256 << 20
# A reply is taken when all but so much of it is.
UNTAKEN_BYTES = 4096


class _Flow(FlowControl):
    """Flow control that lets the protocol decide whether to read on."""

    def __init__(self, transport: asyncio.Transport, read_on: Callable[[], object]):
        super().__init__(transport)
        self._read_on = read_on

    def resume_reading(self) -> None:
        if self.read_paused:
            self.read_paused = False
            self._read_on()


class GuardedProtocol(HttpToolsProtocol):
    """One connection, with limits of time and size for each request and its reply."""

    most_connections = 1000
    # By connection: how many bytes it holds, if any; and the sum.
    held_bytes: ClassVar[dict["GuardedProtocol", int]] = {}
    all_held_bytes: ClassVar[int] = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._in_head = True
        # What has come and is not parsed yet.
        self._unparsed = bytearray()
        self._body_bytes = 0
        # Requests without a complete reply, the one that is being answered first.
        self._cycles: deque[RequestResponseCycle] = deque()
        # The address of the other end.
        self._machine = ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=UNTAKEN_BYTES, low=0)
        self._machine = self.client[0] if self.client else "localhost"
        self.flow = _Flow(transport, lambda: self.loop.call_soon(self._parse))
        if self._are_too_many():
            self.connections.discard(self)
            transport.abort()
            return
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._unparsed.clear()
        self._note_held(0)
        for cycle in self._cycles:  # uvicorn does so with the last one alone
            cycle.disconnected = True
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self.transport.is_closing():
            self._unparsed += data
            self._parse()

    def _parse(self) -> None:
        """Parse what has come, up to the end of a request that is to be answered."""
        if self.transport.is_closing():
            return
        while self._unparsed and not self.flow.read_paused and not self._is_answering:
            piece = bytes(self._unparsed[:PIECE_BYTES])
            del self._unparsed[:PIECE_BYTES]
            if self._in_head:
                self._head_bytes += len(piece)
                self._start_timer()
            super().data_received(piece)
            # A body that came with its head ends the head: see on_headers_complete.
            if self._in_head and self._head_bytes > MOST_HEAD_BYTES:
                self.send_400_response("The head of the request is too long.")
            if self.transport.is_closing():
                self._unparsed.clear()
                break
        if self._unparsed or self.flow.read_paused:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()
        self._count_held()

    @property
    def _is_answering(self) -> bool:
        """Whether requests have come as a whole whose replies are not yet taken."""
        if self.flow.write_paused:
            return True
        # The last one may not have come as a whole.
        return len(self._cycles) > (0 if self._in_head else 1)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._start_timer()

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()
        self._cycles.append(self.cycle)

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_head, self._head_bytes = True, 0
        self._stop_timer()
        self._start_timer(REPLY_TIMEOUT_S)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._cycles.popleft()
        if self._in_head:  # and not in the middle of a body that was refused
            self._stop_timer()
        super().on_response_complete()
        self._go_on()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._in_head and not self._is_answering:
            self._stop_timer()
        self._go_on()

    def _go_on(self) -> None:
        """Wait for the reply to be taken, or else parse the next request."""
        if self._is_answering:
            self._start_timer(REPLY_TIMEOUT_S)
        else:
            self._body_bytes = 0
        if self._unparsed:
            self.loop.call_soon(self._parse)
        self._count_held()

    def _count_held(self) -> None:
        if self.transport.is_closing() and not self.transport.get_write_buffer_size():
            self._note_held(0)
            return
        self._note_held(
            self.transport.get_write_buffer_size()
            + len(self._unparsed)
            + self._body_bytes
            + len(self._cycles) * REQUEST_BYTES
        )

    def _note_held(self, size: int) -> None:
        """Note how much this connection holds; close the largest if it is too much."""
        kind = GuardedProtocol
        kind.all_held_bytes += size - kind.held_bytes.pop(self, 0)
        if size:
            kind.held_bytes[self] = size
        while kind.all_held_bytes > MOST_HELD_BYTES:
            largest = max(kind.held_bytes, key=kind.held_bytes.__getitem__)
            kind.all_held_bytes -= kind.held_bytes.pop(largest)
            largest.transport.abort()

    def _are_too_many(self) -> bool:
        if len(self.connections) > self.most_connections:
            return True
        if is_loopback(self._machine):  # many users share it
            return False
        others: Any = self.connections
        same = sum(other._machine == self._machine for other in others)
        return same > max(1, self.most_connections // SHARE_OF_A_MACHINE)

    def _start_timer(self, seconds: float = REQUEST_TIMEOUT_S) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(seconds, self._timed_out)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _timed_out(self) -> None:
        self._timer = None
        self.transport.abort()
