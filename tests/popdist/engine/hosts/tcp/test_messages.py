"""Messages of groups over links by TCP, by the functions that the core calls."""

import ctypes
import errno
from collections.abc import Sequence
from time import monotonic

import numpy as np
import pytest
from numpy.typing import NDArray

from popdist.engine.hosts.tcp.links import TcpLinks
from tests.popdist.engine.hosts.tcp.test_links import linked

Array = NDArray[np.uint8]
# Of CREDIT_BYTES in tcp.c.
CREDIT = 32 << 20
MIB = 1 << 20

_INT, _LONG, _POINTER = ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p
_BEGIN = ctypes.CFUNCTYPE(_INT, _POINTER, _POINTER, _LONG, _INT, _INT, _POINTER)
_TEST = ctypes.CFUNCTYPE(_INT, _POINTER, _POINTER, _POINTER)
_CANCEL = ctypes.CFUNCTYPE(None, _POINTER, _INT, _POINTER)


class _Calls(ctypes.Structure):
    _fields_ = (
        ("send", _BEGIN),
        ("receive", _BEGIN),
        ("test", _TEST),
        ("is_ready", _POINTER),
        ("cancel", _CANCEL),
    )


class _Table(ctypes.Structure):
    _fields_ = (("calls", ctypes.POINTER(_Calls)), ("own", _POINTER))


class Message:
    """A message that an instance has begun to send or to receive."""

    def __init__(self, links: TcpLinks, call: str, data: Array, peer: int, tag: int):
        get = ctypes.pythonapi.PyCapsule_GetPointer
        get.restype, get.argtypes = _POINTER, (ctypes.py_object, ctypes.c_char_p)
        address = get(links.table, b"popdist.engine._core.link_table")
        self._table = _Table.from_address(address)
        self.data, self._peer = data, peer
        self._handle, self._is_done = _POINTER(), ctypes.c_bool()
        begin = getattr(self._table.calls.contents, call)
        handle = ctypes.addressof(self._handle)
        error = begin(self._table.own, data.ctypes.data, data.nbytes, peer, tag, handle)
        check(error)

    def is_done(self) -> bool:
        """Return whether it is done, and let all messages of the instance advance."""
        if not self._is_done:
            places = ctypes.addressof(self._handle), ctypes.addressof(self._is_done)
            check(self._table.calls.contents.test(self._table.own, *places))
        return bool(self._is_done)

    def cancel(self) -> None:
        handle = ctypes.addressof(self._handle)
        self._table.calls.contents.cancel(self._table.own, self._peer, handle)


def check(error: int) -> None:
    if error:
        raise OSError(error, errno.errorcode[error])


class Instance:
    def __init__(self, links: TcpLinks, peer: int) -> None:
        self.links, self.peer = links, peer

    def send(self, data: Array, tag: int = 16) -> Message:
        return Message(self.links, "send", data, self.peer, tag)

    def receive(self, nbytes: int, tag: int = 16) -> Message:
        return Message(
            self.links, "receive", np.zeros(nbytes, np.uint8), self.peer, tag
        )


@pytest.fixture
def pair() -> tuple[Instance, Instance]:
    first, second = linked(2)
    return Instance(first, 1), Instance(second, 0)


def random(nbytes: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


def finish(*messages: Message) -> None:
    until = monotonic() + 60
    # Each of them advances the messages of its instance.
    while sum(not message.is_done() for message in messages):
        assert monotonic() < until


def advance(*instances: Instance) -> None:
    """Let messages advance for a moment."""
    end = monotonic() + 0.3
    while monotonic() < end:
        for instance in instances:
            instance.links.take()


def finish_sends(count: int, sends: Sequence[Message], receiver: Instance) -> None:
    """Let messages advance until so many have been sent."""
    until = monotonic() + 60
    while sum([send.is_done() for send in sends]) < count:
        receiver.links.take()
        assert monotonic() < until


@pytest.mark.parametrize("nbytes", [0, 1, 100, 20_000, 5_000_000])
def test_a_message_may_come_before_its_receive_or_after(
    pair: tuple[Instance, Instance], nbytes: int
) -> None:
    one, other = pair
    early, late = random(nbytes, 1), random(nbytes, 2)
    sends = [one.send(early)]
    # Only a part of a long one has come yet.
    other.links.take()
    receives = [other.receive(nbytes), other.receive(nbytes)]
    sends.append(one.send(late))

    finish(*sends, *receives)

    assert np.array_equal(receives[0].data, early)
    assert np.array_equal(receives[1].data, late)


def test_messages_are_received_by_tag_and_in_order(
    pair: tuple[Instance, Instance],
) -> None:
    one, other = pair
    messages = [random(3000, seed) for seed in range(8)]
    sends = [one.send(data, 16 + seed % 2) for seed, data in enumerate(messages)]
    advance(other)

    order = [1, 3, 0, 2, 5, 7, 4, 6]
    receives = [other.receive(3000, 16 + seed % 2) for seed in order]
    finish(*sends, *receives)

    for seed, receive in zip(order, receives, strict=True):
        assert np.array_equal(receive.data, messages[seed])


@pytest.mark.parametrize("nbytes", [100, 5_000_000])
@pytest.mark.parametrize("when", ["before", "in part", "after"])
def test_a_message_that_is_too_long_is_an_error_and_later_ones_come(
    pair: tuple[Instance, Instance], nbytes: int, when: str
) -> None:
    one, other = pair
    receives = [other.receive(50)] if when == "before" else []
    sends = [one.send(random(nbytes)), one.send(random(9), 17)]
    if when == "in part":
        other.links.take()
    if when == "after":
        advance(one, other)
    receives = receives or [other.receive(50)]

    with pytest.raises(OSError, match="EMSGSIZE"):
        finish(*receives)

    later = other.receive(9, 17)
    finish(*sends, later)
    assert np.array_equal(later.data, random(9))


def test_what_a_process_does_not_receive_is_not_sent_without_limit(
    pair: tuple[Instance, Instance],
) -> None:
    one, other = pair
    data = [random(MIB, seed) for seed in range(2 * CREDIT // MIB)]
    sends = [one.send(each) for each in data]
    finish_sends(CREDIT // MIB, sends, other)
    advance(one, other)

    done = [send.is_done() for send in sends]
    assert done == sorted(done, reverse=True)
    assert done.count(True) == CREDIT // MIB
    # Short messages are sent all the same.
    one.links.post(1, b"short")
    while (short := other.links.take()) is None:
        one.links.take()
    assert short == (0, b"short")

    receives = [other.receive(MIB) for _ in data]
    finish(*sends, *receives)
    for receive, each in zip(receives, data, strict=True):
        assert np.array_equal(receive.data, each)


def test_messages_that_were_received_count_no_more(
    pair: tuple[Instance, Instance],
) -> None:
    one, other = pair
    for seed in range(2 * CREDIT // MIB):
        receive = other.receive(MIB)
        finish(one.send(random(MIB, seed)), receive)

    sends = [one.send(random(MIB, seed)) for seed in range(10)]

    finish_sends(10, sends, other)


def test_a_receive_gets_its_message_behind_all_that_is_not_received(
    pair: tuple[Instance, Instance],
) -> None:
    one, other = pair
    sends = [one.send(random(MIB, seed)) for seed in range(2 * CREDIT // MIB)]
    last = one.send(random(9), 17)
    advance(one, other)
    assert not last.is_done()

    receive = other.receive(9, 17)

    finish(last, receive)
    assert np.array_equal(receive.data, random(9))
    finish(*sends)


def test_a_message_that_waits_for_credit_is_sent_once_one_before_it_is_cancelled(
    pair: tuple[Instance, Instance],
) -> None:
    one, other = pair
    # Sockets have no room for all of it, and it uses less than half of the credit.
    first = one.send(random(CREDIT // 2 - MIB), 16)
    cancelled = one.send(random(CREDIT), 17)
    last = one.send(random(9), 18)

    cancelled.cancel()

    receives = [other.receive(CREDIT // 2 - MIB, 16), other.receive(9, 18)]
    finish(first, last, *receives)
    assert np.array_equal(receives[1].data, random(9))


def test_messages_that_wait_end_with_the_process_that_does_not_receive_them(
    pair: tuple[Instance, Instance],
) -> None:
    one, other = pair
    sends = [one.send(random(MIB, seed)) for seed in range(2 * CREDIT // MIB)]
    # Some wait for room in the socket, and the last ones for credit.
    advance(one)
    open_sends = [send for send in sends if not send.is_done()]
    assert len(open_sends) > CREDIT // MIB
    other.links._core.disown()
    while not one.links.failed:
        one.links.take()

    for send in open_sends:
        with pytest.raises(OSError, match="ECONNRESET"):
            send.is_done()
