"""Messages of all members to all: short ones take one call of the engine."""

from collections.abc import Sequence

import numpy as np

from popdist.engine.calls.array_rows import bytes_of
from popdist.engine.group import Group
from popdist.engine.spec.operations import Operation

# A message's length, and as much of it as fits.
_PACKET_BYTES, _HEADER_BYTES = 256, 4
_START_BYTES = _PACKET_BYTES - _HEADER_BYTES


class Packets:
    """The exchange of messages among the members of a group."""

    def __init__(self, group: Group) -> None:
        self._group = group
        sent = np.zeros(_PACKET_BYTES, np.uint8)
        received = np.zeros(group.size * _PACKET_BYTES, np.uint8)
        self._rows = bytes_of(sent), bytes_of(received)
        self._sent, self._received = sent.data, received.data
        self._lengths = [_PACKET_BYTES] * group.size

    def exchange(self, message: bytes) -> Sequence[bytes]:
        """Return the messages of all members, in their order. All must call it."""
        head = len(message).to_bytes(_HEADER_BYTES, "little") + message[:_START_BYTES]
        self._sent[: len(head)] = head
        self._group.transport.all_gather(
            *self._rows, self._lengths, prelude_to=Operation.NEGOTIATION
        )
        packets = self._received.tobytes()
        starts, is_cut = [], False
        for begin in range(0, len(packets), _PACKET_BYTES):
            start = begin + _HEADER_BYTES
            length = int.from_bytes(packets[begin:start], "little")
            starts.append(packets[start : start + min(length, _START_BYTES)])
            is_cut |= length > _START_BYTES
        if not is_cut:
            return starts
        rests = self._group.all_gather(np.frombuffer(message[_START_BYTES:], np.uint8))
        return [
            start + rest.tobytes() for start, rest in zip(starts, rests, strict=True)
        ]
