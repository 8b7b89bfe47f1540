"""Messages of all members to all: short ones take one call of the engine."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from popdist.engine.calls.rows import bytes_of
from popdist.engine.spec.operations import Operation
from popdist.engine.transport import Transport

# A message's length, and as much of it as fits.
_PACKET_BYTES, _HEADER_BYTES = 256, 4
_START_BYTES = _PACKET_BYTES - _HEADER_BYTES


class Packets:
    """The exchange of messages among the members of a group."""

    def __init__(self, transport: Transport) -> None:
        size = len(transport.replicas)
        self._gather = partial(transport.all_gather, prelude_to=Operation.NEGOTIATION)
        sent = np.zeros(_PACKET_BYTES, np.uint8)
        received = np.zeros(size * _PACKET_BYTES, np.uint8)
        self._rows = bytes_of(sent), bytes_of(received)
        self._sent, self._received = sent.data, received.data
        self._lengths = [_PACKET_BYTES] * size

    def exchange(self, message: bytes) -> Sequence[bytes]:
        """Return the messages of all members, in their order. All must call it."""
        head = len(message).to_bytes(_HEADER_BYTES, "little") + message[:_START_BYTES]
        self._sent[: len(head)] = head
        self._gather(*self._rows, self._lengths)
        packets = self._received.tobytes()
        starts, lengths = [], []
        for begin in range(0, len(packets), _PACKET_BYTES):
            start = begin + _HEADER_BYTES
            length = int.from_bytes(packets[begin:start], "little")
            starts.append(packets[start : start + min(length, _START_BYTES)])
            lengths.append(length - len(starts[-1]))
        if any(lengths):
            return self._exchange_rests(message[_START_BYTES:], starts, lengths)
        return starts

    def _exchange_rests(
        self, rest: bytes, starts: Sequence[bytes], lengths: Sequence[int]
    ) -> Sequence[bytes]:
        sent = np.frombuffer(rest, np.uint8)
        received = np.empty(sum(lengths), np.uint8)
        self._gather(bytes_of(sent), bytes_of(received), lengths)
        rests, messages, begin = received.tobytes(), [], 0
        for start, length in zip(starts, lengths, strict=True):
            messages.append(start + rests[begin : begin + length])
            begin += length
        return messages
