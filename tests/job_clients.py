"""The clients of a job without processes, which tests play."""

import os
import select
import socket
import time
from dataclasses import replace
from typing import Any

from plans import make_request, planned

from poprun.options.programs import Program
from poprun.output import waiter
from poprun.output.output_tap import OutputTap
from poprun.plan.topology import Topology
from poprun.supervise.clients.job_view import AttemptView
from poprun.supervise.clients.server import Clients
from poprun.wire import protocol
from poprun.wire.channel import Channel

# Long enough for the most loaded machine: the loop of a test runs in its process.
LIMIT_S = 200.0
_opened: list["Clients | TestClient"] = []


def make_clients(size: int, identity: str | None = None, **request: Any) -> Clients:
    """Return the clients of a job that has so many instances."""
    topology = Topology(num_instances=size, num_replicas=2 * size)
    program = Program(argv=["python", "train \udcff.py"], instances=range(size))
    plan = planned(
        replace(
            make_request(topology, programs=[program], **request),
            identity=identity or os.urandom(16).hex(),
        )
    )
    tap = OutputTap()
    clients = Clients(plan.request.identity)
    clients.show(AttemptView(plan, tap.last_line), tap)
    _opened.append(clients)
    return clients


class TestClient:
    """A client of a job whose loop runs in this process."""

    __test__ = False

    def __init__(self, identity: str) -> None:
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(f"\0popctl-{identity}")
        self.channel = Channel(sock)
        _opened.append(self)
        self.has_ended = False

    def close(self) -> None:
        self.channel.close()

    def ask(self, kind: int, *fields: bytes | int) -> None:
        self.channel.send(protocol.pack(kind, protocol.VERSION, b"", *fields))

    def messages(self) -> list[tuple[int, list[bytes]]]:
        """Return what the client has been sent so far."""
        messages = []
        while not self.has_ended and select.select([self.channel], [], [], 0)[0]:
            received = self.channel.receive()
            if received is None:
                self.has_ended = True
            messages += received or []
        return messages


def close_opened() -> None:
    """Close the sockets of a test."""
    while _opened:
        _opened.pop().close()


def serve(clients: Clients, turns: int = 3) -> None:
    """Let the loop turn so often: accept, read, answer."""
    for _ in range(turns):
        waiter.serve(clients.interests(time.monotonic()), due=0)
        clients.tick(time.monotonic())
