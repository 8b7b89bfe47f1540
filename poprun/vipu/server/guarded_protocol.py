"""uvicorn's HTTP protocol with limits for clients that are slow, many or endless.

uvicorn itself waits for a request as long as a client likes, keeps as much of its
head as it sends, and accepts connections until no file descriptor is left.
"""

import asyncio
from collections import Counter
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from poprun.vipu.client.server_address import is_loopback

# In seconds: for a whole request to come, head and body, and for its reply to go.
REQUEST_TIMEOUT_S = 20.0
REPLY_TIMEOUT_S = 60.0
MOST_HEAD_BYTES = 32768
# One other machine may have this part of all connections.
SHARE_OF_A_MACHINE = 4


class GuardedProtocol(HttpToolsProtocol):
    """One connection, with a time limit for each request and a size limit for heads."""

    most_connections = 1000
    # Connections of other machines, by their address.
    num_connections: ClassVar[Counter[str]] = Counter()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._in_head = True
        # By which it is counted; "" for this machine, which many users share.
        self._machine = ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.client is not None and not is_loopback(self.client[0]):
            self._machine = self.client[0]
            self.num_connections[self._machine] += 1
        if self._are_too_many():
            self.connections.discard(self)
            transport.abort()
            return
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        if self._machine:
            self.num_connections[self._machine] -= 1
            if not self.num_connections[self._machine]:
                del self.num_connections[self._machine]
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

    def _are_too_many(self) -> bool:
        of_machine = self.num_connections[self._machine] if self._machine else 0
        return len(self.connections) > self.most_connections or of_machine > max(
            1, self.most_connections // SHARE_OF_A_MACHINE
        )

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
