"""Start vipu-server as a user does, and ask it."""

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import wait_for

from poprun.vipu import liveness
from poprun.vipu.client.connection import _Exchange
from poprun.vipu.client.server_address import ServerAddress
from poprun.vipu.client.server_inventory import ServerInventory
from poprun.vipu.leases import Acquisition, Holder
from poprun.vipu.model import PartitionRequest

COMMAND = [sys.executable, "-m", "poprun.vipu.server.serve"]


class Server:
    """A vipu-server that runs, with the database in a file of the test."""

    def __init__(self, database: Path, *arguments: str) -> None:
        self.database = database
        self.arguments = arguments
        self.log = database.with_suffix(".log")
        self.clients: list[ServerInventory] = []
        # Keeps the port while the server is away: the kernel gives it to no other
        # process. It does not listen, so the server can bind to it as well.
        self.reserved = socket.socket()
        self.reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.reserved.bind(("127.0.0.1", 0))
        self.port: int = self.reserved.getsockname()[1]
        self.start()

    def start(self) -> None:
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [
                    *COMMAND,
                    f"--port={self.port}",
                    f"--database={self.database}",
                    *self.arguments,
                ],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        self.first_line = self.process.stdout.readline()
        address = f"://127.0.0.1:{self.port} "
        assert address in self.first_line, self.first_line + self.log.read_text()

    def address(self, **changes: Any) -> ServerAddress:
        return ServerAddress("127.0.0.1", self.port)._replace(**changes)

    def inventory(self, *, admin: bool = False, **changes: Any) -> ServerInventory:
        made = ServerInventory(self.address(**changes), timeout_s=200, admin=admin)
        self.clients.append(made)
        return made

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=200)

    def exchange(self, request: bytes, *, and_close: bool = False) -> bytes:
        """Send bytes, and return what comes until the server closes."""
        with self.connect() as connection:
            connection.sendall(request)
            if and_close:
                connection.shutdown(socket.SHUT_WR)
            reply = b""
            while data := connection.recv(65536):
                reply += data
            return reply

    def stop(self) -> int:
        """End it by SIGTERM, and return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(200)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(200)

    def restart(self) -> None:
        """Start it again at the same port, with the same database."""
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.start()


@contextmanager
def serving(database: Path, *arguments: str) -> Iterator[Server]:
    server = Server(database, *arguments)
    try:
        yield server
    finally:
        for client in server.clients:
            client.close()
        server.kill()
        server.reserved.close()
        assert server.process.stdout is not None
        server.process.stdout.close()


@contextmanager
def answering(behave: Callable[[socket.socket], None]) -> Iterator[ServerAddress]:
    """Answer the first request of every connection by a function, in a thread."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=handle, args=(connection,), daemon=True).start()

    def handle(connection: socket.socket) -> None:
        with connection, suppress(OSError), connection.makefile("rb") as request:
            length = 0
            while (line := request.readline()) not in (b"\r\n", b""):
                name, _, value = line.lower().partition(b":")
                length = int(value) if name == b"content-length" else length
            request.read(length)
            if line:  # the client has not gone
                behave(connection)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield ServerAddress("127.0.0.1", listener.getsockname()[1])
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        # It may be about to accept from the descriptor, whatever that is by then.
        thread.join()
        listener.close()


def count_timeout_from_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a client have all the time that it needs to begin a request."""
    join = _Exchange.join

    def join_once_connected(exchange: _Exchange, timeout_s: float) -> None:
        connection = exchange._connection
        wait_for(
            lambda: connection.sock is not None or not exchange.is_alive(),
            "the connection",
        )
        join(exchange, timeout_s)

    monkeypatch.setattr(_Exchange, "join", join_once_connected)


def http(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


def acquisition(
    name: str, size: int = 1, job: str = "j1", **changes: Any
) -> Acquisition:
    """Return what a job asks: a partition of its own, for one instance."""
    return replace(
        Acquisition(
            holder=Holder(
                user="alice", job=job, host="h1", process=liveness.identify()
            ),
            partition=name,
            num_children=1,
            ipus_per_child=size,
            create=PartitionRequest(name=name, size=size, owner="alice"),
        ),
        **changes,
    )
