"""The connections of processes that can re-form: what they may say, and their end."""

import json
import socket
from collections.abc import Iterator

import pytest

from poprun.host.member_connections import MemberConnections
from poprun.wire import protocol
from poprun.wire.channel import Channel
from poprun.wire.events import CanReform, Event, ReformAsked, ReformEnded, Rejected

REFORM = (protocol.REFORM, [b"3", b"5000", b"6000", b"0,1"])


class Process:
    """A process of an instance, and poprun's end of its connection."""

    def __init__(self) -> None:
        ours, self.sock = socket.socketpair()
        self.sock.setblocking(False)
        self.link = Channel(ours)

    def received(self) -> list[tuple[int, list[bytes]]]:
        try:
            return protocol.Decoder().feed(self.sock.recv(4096))
        except BlockingIOError:
            return []

    @property
    def is_cut_off(self) -> bool:
        return self.link.fileno() < 0

    def close(self) -> None:
        self.link.close()
        self.sock.close()


@pytest.fixture
def processes() -> Iterator[list[Process]]:
    started = [Process(), Process()]
    yield started
    for process in started:
        process.close()


def test_a_process_asks_and_is_answered(processes: list[Process]) -> None:
    events: list[Event] = []
    members = MemberConnections(events.append)
    process, _ = processes

    members.add(process.link, 2)
    members.receive(process.link, [REFORM])
    members.tell(2, protocol.REFORM_REFUSED, b"No.")

    assert events == [
        CanReform(rank=2),
        ReformAsked(
            rank=2, generation=3, links_port=5000, store_port=6000, silent=(0, 1)
        ),
    ]
    assert process.received() == [(protocol.REFORM_REFUSED, [b"No."])]
    # It may ask again once it has an answer.
    members.receive(process.link, [REFORM])
    assert len(events) == 3


def test_the_end_of_a_process_is_an_event(processes: list[Process]) -> None:
    events: list[Event] = []
    members = MemberConnections(events.append)
    first, second = processes

    members.add(first.link, 0)
    members.receive(first.link, None)
    # The next program of the same instance.
    members.add(second.link, 0)

    assert events == [CanReform(rank=0), ReformEnded(rank=0), CanReform(rank=0)]
    members.receive(first.link, None)
    assert len(events) == 3


def test_a_second_process_of_an_instance_is_told_why_it_cannot(
    processes: list[Process],
) -> None:
    events: list[Event] = []
    members = MemberConnections(events.append)
    first, second = processes

    members.add(first.link, 1)
    members.add(second.link, 1)

    [(kind, [answer])] = second.received()
    assert kind == protocol.ELASTIC_KNOWN
    assert json.loads(answer)["refusal"].startswith(
        "Another process of instance 1 can re-form already."
    )
    assert second.is_cut_off
    assert not first.is_cut_off
    assert events == [CanReform(rank=1)]


@pytest.mark.parametrize(
    "message",
    [
        pytest.param((protocol.REFORM, [b"3"]), id="too-few-fields"),
        pytest.param((protocol.REFORM, [b"x", b"1", b"1", b""]), id="no-number"),
        pytest.param((protocol.HELLO, []), id="another-kind"),
        pytest.param((255, [b"\xff" * 100]), id="garbage"),
    ],
)
def test_a_process_that_sends_anything_else_is_cut_off(
    processes: list[Process], message: tuple[int, list[bytes]]
) -> None:
    events: list[Event] = []
    members = MemberConnections(events.append)
    process, _ = processes

    members.add(process.link, 0)
    members.receive(process.link, [message])

    assert process.is_cut_off
    assert events == [
        CanReform(rank=0),
        Rejected(why=f"a message of kind {message[0]} was not valid"),
        ReformEnded(rank=0),
    ]
    members.tell(0, protocol.MEMBERS_CHANGE, b"{}")


def test_a_process_may_not_ask_twice(processes: list[Process]) -> None:
    events: list[Event] = []
    members = MemberConnections(events.append)
    process, _ = processes

    members.add(process.link, 0)
    members.receive(process.link, [REFORM, REFORM])

    assert process.is_cut_off
    assert sum(isinstance(event, ReformAsked) for event in events) == 1
