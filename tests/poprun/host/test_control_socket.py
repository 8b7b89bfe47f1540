"""The control socket: who may connect, for how long, and whose handler is called."""

import errno
import os
import resource
import socket
from collections.abc import Iterator
from math import inf
from typing import Any

import pytest

from poprun.host.control_socket import (
    FIRST_MESSAGE_S,
    MOST_UNKNOWN,
    RETRY_S,
    ControlSocket,
    Handler,
    Messages,
)
from poprun.wire import protocol
from poprun.wire.channel import Channel, connect
from poprun.wire.events import AcceptFailed, Event, Rejected

NOW = 1000.0
# A command that only this test has: a message to it, and further ones.
STATUS, MORE = 240, 241
KEY = b"key"


class Status:
    """The handler of the command: it answers each message."""

    def __init__(self) -> None:
        self.received: list[Messages | None] = []

    def accept(self, link: Channel, fields: list[Any]) -> bool:
        link.send(protocol.pack(STATUS, b"running " + fields[0]))
        return fields[0] != b"-1"

    def receive(self, link: Channel, messages: Messages | None) -> None:
        self.received.append(messages)


class Listener(ControlSocket):
    """A control socket with one handler, and the events that it has emitted."""

    def __init__(self, control: str) -> None:
        self.status = Status()
        self.events: list[Event] = []
        handlers = {
            STATUS: Handler(accept=self.status.accept, receive=self.status.receive)
        }
        super().__init__(control, 1)
        self.handle_with(handlers, self.events.append)

    def serve(self, times: int = 1) -> None:
        """Serve what is there, as the loop does."""
        for _ in range(times):
            for interest in list(self.interests(NOW)):
                interest.call()


@pytest.fixture
def control(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(protocol.FORMS, STATUS, "itt")
    return f"@poprun-test-{os.urandom(8).hex()}/{KEY.decode()}"


@pytest.fixture
def listener(control: str) -> Iterator[Listener]:
    opened = Listener(control)
    yield opened
    opened.close()


def client(control: str) -> socket.socket:
    sock, key = connect(control.encode())
    assert key == KEY
    return socket.socket(fileno=sock.detach())


def test_a_command_is_one_more_handler(listener: Listener, control: str) -> None:
    with client(control) as sock:
        command = protocol.pack(STATUS, protocol.VERSION, KEY, b"7")
        sock.sendall(command + protocol.pack(MORE, b"at once"))
        listener.serve(2)
        assert protocol.Decoder().feed(sock.recv(99)) == [(STATUS, [b"running 7"])]

        sock.sendall(protocol.pack(MORE, b"later"))
        listener.serve()
    listener.serve()

    assert listener.status.received == [
        [(MORE, [b"at once"])],
        [(MORE, [b"later"])],
        None,
    ]
    assert listener.events == []
    assert len(list(listener.interests(NOW))) == 2


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(protocol.pack(STATUS, 2, KEY, b"7"), id="version"),
        pytest.param(protocol.pack(STATUS, 1, b"guess", b"7"), id="key"),
        pytest.param(protocol.pack(STATUS, 1, KEY), id="fields"),
        pytest.param(protocol.pack(MORE, 1, KEY, b"7"), id="kind"),
        pytest.param(protocol.pack(STATUS, 1, KEY, b"-1"), id="refused"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_what_does_not_belong_to_the_job_is_cut_off(
    listener: Listener, control: str, message: bytes
) -> None:
    with client(control) as sock:
        sock.sendall(message)
        sock.shutdown(socket.SHUT_WR)
        listener.serve(2)

        assert listener.status.received == []
        assert listener.events == [
            Rejected(why="it did not prove that it belongs to the job")
        ]
        sock.setblocking(False)
        assert sock.recv(99)[-9:] in (b"", b"running -1"[-9:])


def test_a_client_that_says_nothing_does_not_stay(
    listener: Listener, control: str
) -> None:
    with client(control) as sock:
        assert listener.deadline(NOW) == inf
        listener.accept(NOW)
        assert listener.deadline(NOW) == NOW + FIRST_MESSAGE_S

        listener.tick(NOW + FIRST_MESSAGE_S - 1)
        assert listener.events == []
        listener.tick(NOW + FIRST_MESSAGE_S)
        assert listener.events == [Rejected(why="it sent no message")]
        assert listener.deadline(NOW) == inf
        assert sock.recv(1) == b""


def test_the_oldest_of_too_many_clients_makes_room(
    listener: Listener, control: str
) -> None:
    most = 1 + MOST_UNKNOWN
    clients = []
    for second in range(most + 2):
        clients.append(client(control))
        listener.accept(NOW + second)

    assert len(list(listener.interests(NOW))) == 2 + most
    why = f"{most} others had not identified themselves either"
    assert listener.events == [Rejected(why=why)] * 2
    assert [sock.recv(1) for sock in clients[:2]] == [b"", b""]
    clients[2].setblocking(False)
    with pytest.raises(BlockingIOError):
        clients[2].recv(1)
    for sock in clients:
        sock.close()


def test_without_descriptors_it_waits_a_moment_before_it_accepts_again(
    listener: Listener, control: str
) -> None:
    with client(control):
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = os.dup(0)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
        try:
            listener.accept(NOW)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)

        assert listener.events == [AcceptFailed(errno=errno.EMFILE)]
        hangups_alone = 1
        assert len(list(listener.interests(NOW))) == hangups_alone
        assert listener.deadline(NOW) == NOW + RETRY_S
        listener.accept(NOW + RETRY_S)
        assert len(list(listener.interests(NOW + RETRY_S))) == 3
        assert len(listener.events) == 1


def test_what_an_unknown_client_sends_may_not_be_long(
    listener: Listener, control: str
) -> None:
    with client(control) as sock:
        sock.sendall((protocol.MAX_REPORT + 1).to_bytes(4, "big"))
        listener.serve(2)

        assert sock.recv(1) == b""
        assert listener.events == [
            Rejected(why="it did not prove that it belongs to the job")
        ]
