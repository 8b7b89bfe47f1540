import os
import resource
import select
import socket
from collections.abc import Iterator

import pytest

from poprun.wire import protocol
from poprun.wire.channel import Channel, peer_of

Pair = tuple[Channel, Channel]


@pytest.fixture
def pair() -> Iterator[Pair]:
    one, other = map(Channel, socket.socketpair())
    yield one, other
    one.close()
    other.close()


def drained(sender: Channel, receiver: Channel) -> list[tuple[int, list[bytes]]]:
    """Let everything through that is on its way."""
    messages: list[tuple[int, list[bytes]]] = []
    while select.select([receiver], [], [], 0)[0]:
        received = receiver.receive()
        assert received is not None
        messages += received
        sender.flush()
    return messages


def test_messages_arrive_in_order(pair: Pair) -> None:
    one, other = pair

    one.send(protocol.pack(protocol.SIGNAL, 15))
    one.send(protocol.pack(protocol.KILL))

    assert other.receive() == [(protocol.SIGNAL, [b"15"]), (protocol.KILL, [])]
    assert other.receive() == []


def test_send_does_not_wait_for_a_peer_that_does_not_read(pair: Pair) -> None:
    one, other = pair
    big = bytes(8 << 20)

    one.send(protocol.pack(protocol.SPEC, big))
    assert one.has_unsent
    # What comes after it stays after it.
    one.send(protocol.pack(protocol.SIGNAL, 15))
    one.send(protocol.pack(protocol.RELEASE))

    messages = drained(one, other)
    assert [kind for kind, _ in messages] == [
        protocol.SPEC,
        protocol.SIGNAL,
        protocol.RELEASE,
    ]
    assert messages[0][1] == [big]
    assert not one.has_unsent


def test_descriptors_come_with_their_message(pair: Pair) -> None:
    one, other = pair
    read, write = os.pipe()
    os.set_inheritable(read, True)

    one.send(protocol.pack(protocol.STARTED, 1, 2), (read, write))
    os.close(read)
    os.close(write)

    assert other.receive() == [(protocol.STARTED, [b"1", b"2"])]
    theirs_read, theirs_write = other.descriptors
    # No program that poprun starts meanwhile gets them.
    assert not os.get_inheritable(theirs_read)
    os.write(theirs_write, b"through")
    assert os.read(theirs_read, 99) == b"through"


def test_a_descriptor_comes_with_a_message_that_is_longer_than_the_socket_takes(
    pair: Pair,
) -> None:
    one, other = pair
    read, write = os.pipe()
    big = bytes(8 << 20)

    one.send(protocol.pack(protocol.SPEC, big), (read,))
    os.close(read)

    assert drained(one, other) == [(protocol.SPEC, [big])]
    [theirs] = other.descriptors
    os.write(write, b"through")
    os.close(write)
    assert os.read(theirs, 99) == b"through"


def test_descriptors_that_were_not_taken_are_closed_with_the_channel(
    pair: Pair,
) -> None:
    one, other = pair
    read, write = os.pipe()

    one.send(protocol.pack(protocol.STARTED, 1, 2), (write,))
    os.close(write)
    other.receive()
    other.close()

    assert os.read(read, 1) == b""
    os.close(read)


def test_what_a_peer_said_before_it_left_is_heard(pair: Pair) -> None:
    one, other = pair

    one.send(protocol.pack(protocol.CLEAN, 0))
    one.close()

    assert other.receive() == [(protocol.CLEAN, [b"0"])]
    assert other.receive() is None


def test_sending_to_a_closed_peer_is_no_error(pair: Pair) -> None:
    one, other = pair
    other.close()

    one.send(protocol.pack(protocol.KILL))

    assert not one.has_unsent
    assert one.receive() is None


def test_a_peer_that_speaks_another_language_counts_as_gone(pair: Pair) -> None:
    one, other = pair

    one.sock.send(b"GET / HTTP/1.1\r\n\r\n")

    assert other.receive() is None


def test_the_kernel_names_the_pid_and_user_of_the_peer(pair: Pair) -> None:
    assert peer_of(pair[0].sock) == (os.getpid(), os.geteuid())


def test_descriptors_wait_with_their_message_behind_what_is_unsent(pair: Pair) -> None:
    one, other = pair
    read, write = os.pipe()
    big = bytes(8 << 20)

    one.send(protocol.pack(protocol.SPEC, big))
    one.send(protocol.pack(protocol.STARTED, 1, 2), (read,))
    one.send(protocol.pack(protocol.SIGNAL, 15))
    os.close(read)

    assert drained(one, other) == [
        (protocol.SPEC, [big]),
        (protocol.STARTED, [b"1", b"2"]),
        (protocol.SIGNAL, [b"15"]),
    ]
    assert not one.has_unsent
    [theirs] = other.descriptors
    os.write(write, b"through")
    os.close(write)
    assert os.read(theirs, 99) == b"through"


def test_descriptors_that_were_never_sent_are_closed_with_the_channel(
    pair: Pair,
) -> None:
    one, _ = pair
    read, write = os.pipe()

    one.send(protocol.pack(protocol.SPEC, bytes(8 << 20)))
    one.send(protocol.pack(protocol.STARTED, 1, 2), (write,))
    os.close(write)
    one.close()

    assert os.read(read, 1) == b""
    os.close(read)


def test_a_process_without_free_descriptors_still_gets_the_message(pair: Pair) -> None:
    one, other = pair
    one.send(protocol.pack(protocol.STARTED, 1, 2), (0, 1))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
    try:
        received = other.receive()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    assert (received, other.descriptors) == ([(protocol.STARTED, [b"1", b"2"])], [])


def test_a_peer_that_sends_descriptors_for_no_reason_counts_as_gone(pair: Pair) -> None:
    one, other = pair

    one.send(protocol.pack(protocol.STARTED, 1, 2), (0,) * 4)
    one.send(protocol.pack(protocol.STARTED, 1, 2), (0,) * 4)

    assert other.receive() is not None
    assert other.receive() is None


def test_a_peer_that_announces_too_long_a_message_counts_as_gone() -> None:
    one, two = socket.socketpair()
    channel = Channel(two, protocol.MAX_REPORT)

    one.send((protocol.MAX_REPORT + 1).to_bytes(4, "big"))

    assert channel.receive() is None
    one.close()
    channel.close()
