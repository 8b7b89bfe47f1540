"""Which of a process's connections are MPI's, and whether they have hung up."""

import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from time import monotonic
from typing import Any

import pytest

from popdist.engine.hosts.mpi import arrivals
from popdist.engine.hosts.mpi.arrivals import Arrivals, listening_ports

CONNECT = """
import socket, sys
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
sys.stdin.read()
"""


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


class Peer:
    """Another process with a connection to this one."""

    def __init__(self, listener: socket.socket) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CONNECT, str(port_of(listener))],
            stdin=subprocess.PIPE,
        )
        self.connection = listener.accept()[0]

    def end(self) -> None:
        """Let the process end, and wait until its connection has hung up."""
        self.process.communicate()
        poll = select.poll()
        poll.register(self.connection, select.POLLRDHUP)
        assert poll.poll(200_000)

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()
        self.process.communicate()


def port_of(listener: socket.socket) -> int:
    port: int = listener.getsockname()[1]
    return port


def test_a_connection_of_mpi_is_reported_once_the_peer_has_ended(
    listener: socket.socket,
) -> None:
    with Peer(listener) as peer:
        found = Arrivals({port_of(listener)})
        assert found.hangups() == (0, 0.0)
        began = monotonic()

        peer.end()

        count, since = found.hangups()
        assert count == 1
        assert began <= since <= monotonic()
        assert found.hangups() == (1, since)
        found.forget_hangups()
        assert found.hangups() == (0, 0.0)


def test_a_hangup_is_reported_after_mpi_has_closed_its_connection(
    listener: socket.socket,
) -> None:
    with Peer(listener) as peer:
        found = Arrivals({port_of(listener)})
        peer.end()
        peer.connection.close()

        assert found.hangups()[0] == 1
        found.forget_hangups()


def test_connections_of_the_program_are_not_reported(listener: socket.socket) -> None:
    with Peer(listener) as peer, socket.create_server(("127.0.0.1", 0)) as other:
        found = Arrivals({port_of(other)})
        peer.end()

        assert found.hangups() == (0, 0.0)
        assert Arrivals().hangups_fileno() == -1
        assert found.hangups_fileno() >= 0


def test_new_connections_are_found_and_no_duplicate_is_made_twice(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "_REFRESH_SECONDS", 0.0)
    found = Arrivals({port_of(listener)})
    with Peer(listener) as peer:
        found.refresh()
        sockets = os.listdir("/proc/self/fd")
        found.refresh()
        assert len(os.listdir("/proc/self/fd")) == len(sockets)
        peer.end()

        assert found.hangups()[0] == 1
        found.forget_hangups()


def test_the_ports_of_listening_sockets_are_told(
    listener: socket.socket, tmp_path: Any
) -> None:
    with Peer(listener) as peer, socket.socket(socket.AF_UNIX) as local:
        local.bind(str(tmp_path / "socket"))
        local.listen()

        assert port_of(listener) in listening_ports()
        assert peer.connection.getpeername()[1] not in listening_ports()
