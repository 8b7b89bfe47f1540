"""uvicorn's HTTP protocol with limits for clients that are slow, many or endless.

uvicorn itself waits for a request as long as a client likes, keeps as much of its
head as it sends, and accepts connections until no file descriptor is left.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# In seconds: for a whole request to come, head and body, and for its reply to go.
REQUEST_TIMEOUT_S = 20.0
REPLY_TIMEOUT_S = 60.0
MOST_HEAD_BYTES = 32768


class GuardedProtocol(HttpToolsProtocol):
    """One connection, with a time limit for each request and a size limit for heads."""

    most_connections = 1000

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._in_head = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.most_connections:
            self.connections.discard(self)
            transport.abort()
            return
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._in_head:
            self._head_bytes += len(data)
            self._start_timer()
        super().data_received(data)
        # A body that came with its head ends the head: see on_headers_complete.
        if self._in_head and self._head_bytes > MOST_HEAD_BYTES:
            self.send_400_response("The head of the request is too long.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._start_timer()

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_head, self._head_bytes = True, 0
        self._stop_timer()
        self._start_timer(REPLY_TIMEOUT_S)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        if self._in_head:  # and not in the middle of a body that was refused
            self._stop_timer()
        super().on_response_complete()

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
