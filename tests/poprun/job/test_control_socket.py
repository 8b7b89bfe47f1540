import os
import resource
import socket
from collections.abc import Iterator

import pytest

from poprun.helpers import protocol
from poprun.helpers.channel import connect
from poprun.job.control_socket import (
    FIRST_MESSAGE_S,
    MOST_UNKNOWN,
    RETRY_S,
    ControlSocket,
)

NOW = 1000.0
FOREVER = float("inf")


@pytest.fixture
def control() -> str:
    return f"@poprun-test-{os.urandom(8).hex()}/key"


@pytest.fixture
def listener(control: str) -> Iterator[ControlSocket]:
    found = ControlSocket(control, num_instances=1)
    yield found
    found.close()


def client(control: str) -> socket.socket:
    sock, key = connect(control.encode())
    assert key == b"key"
    return socket.socket(fileno=sock.detach())


def test_a_client_that_says_nothing_does_not_stay(
    listener: ControlSocket, control: str
) -> None:
    with client(control) as sock:
        assert listener.deadline(NOW) == FOREVER
        assert listener.accept(NOW) == []
        assert listener.deadline(NOW) == NOW + FIRST_MESSAGE_S

        assert listener.expire(NOW + FIRST_MESSAGE_S - 1) == 0
        assert listener.expire(NOW + FIRST_MESSAGE_S) == 1
        assert not listener.unknown
        assert sock.recv(1) == b""


def test_the_oldest_of_too_many_clients_makes_room(
    listener: ControlSocket, control: str
) -> None:
    most = 1 + MOST_UNKNOWN
    closed: list[str] = []
    clients = []
    for second in range(most + 2):
        clients.append(client(control))
        closed += listener.accept(NOW + second)

    assert len(listener.unknown) == most
    assert closed == [f"{most} others had not said who they are either"] * 2
    assert [sock.recv(1) for sock in clients[:2]] == [b"", b""]
    clients[2].setblocking(False)
    with pytest.raises(BlockingIOError):
        clients[2].recv(1)
    for sock in clients:
        sock.close()


def test_without_descriptors_it_waits_a_moment_before_it_accepts_again(
    listener: ControlSocket, control: str
) -> None:
    with client(control):
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = os.dup(0)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
        try:
            with pytest.raises(OSError, match="Too many open files"):
                listener.accept(NOW)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)

        assert not listener.is_listening(NOW)
        assert listener.deadline(NOW) == NOW + RETRY_S
        assert listener.is_listening(NOW + RETRY_S)
        assert listener.accept(NOW + RETRY_S) == []
        assert len(listener.unknown) == 1


def test_what_an_unknown_client_sends_may_not_be_long(
    listener: ControlSocket, control: str
) -> None:
    with client(control) as sock:
        listener.accept(NOW)
        [link] = listener.unknown
        sock.sendall((protocol.MAX_REPORT + 1).to_bytes(4, "big"))

        assert link.receive() is None
