"""Messages of all members to all: short ones take one call of the engine."""

from collections.abc import Sequence

import numpy as np

from popdist.engine.calls.rows import bytes_of
from popdist.engine.transport import Transport

# A message's length, and as much of it as fits.
_PACKET_BYTES, _HEADER_BYTES = 256, 4


class Packets:
    """The exchange of messages among the members of a group."""

    def __init__(self, transport: Transport) -> None:
        size = len(transport.replicas)
        self._transport = transport
        self._sent = np.zeros(_PACKET_BYTES, np.uint8)
        self._received = np.zeros((size, _PACKET_BYTES), np.uint8)
        self._rows = bytes_of(self._sent), bytes_of(self._received)
        self._lengths = [_PACKET_BYTES] * size

    def exchange(self, message: bytes) -> Sequence[bytes]:
        """Return the messages of all members, in their order. All must call it."""
        start = message[: _PACKET_BYTES - _HEADER_BYTES]
        head = len(message).to_bytes(_HEADER_BYTES, "little") + start
        self._sent[: len(head)] = np.frombuffer(head, np.uint8)
        self._transport.all_gather(*self._rows, self._lengths)
        found, rests = [], []
        for packet in self._received:
            text = packet.tobytes()
            length = int.from_bytes(text[:_HEADER_BYTES], "little")
            found.append(text[_HEADER_BYTES : _HEADER_BYTES + length])
            rests.append(length - len(found[-1]))
        if any(rests):
            return self._exchange_rests(message[len(start) :], found, rests)
        return found

    def _exchange_rests(
        self, rest: bytes, starts: Sequence[bytes], lengths: Sequence[int]
    ) -> Sequence[bytes]:
        sent = np.frombuffer(rest, np.uint8)
        received = np.empty(sum(lengths), np.uint8)
        self._transport.all_gather(bytes_of(sent), bytes_of(received), lengths)
        whole, found, at = received.tobytes(), [], 0
        for start, length in zip(starts, lengths, strict=True):
            found.append(start + whole[at : at + length])
            at += length
        return found
