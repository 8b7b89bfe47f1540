"""What the leaders of hosts tell each other of a call, with a little data."""

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from popdist.engine.hosts.member import RECORD, HostsMember
from popdist.engine.spec.operations import Described, Status

Bytes = NDArray[np.uint8]

# The most data of one host that goes with its description of a call.
MOST_BYTES = 16 << 10
# A description: operation, dtype, reduction, algorithm, root, count, name, a hash of
# the details, the number of the call, and how many bytes follow.
_HEADER = Struct("<5q5Q")
_NOTHING = np.empty(0, np.uint8)


class _Record(NamedTuple):
    call: Described
    details: int
    data: Bytes


class Records:
    """Brings the leaders of a group's hosts together in each call.

    The number of rounds is the logarithm of that of the hosts: in each, a leader hands
    on all that it has got so far.
    """

    def __init__(self, member: HostsMember) -> None:
        self._member = member
        self._hosts = len(member.layout.leaders)
        longest = _HEADER.size + MOST_BYTES
        self._received = np.empty((self._hosts, longest), np.uint8)

    def share(self, details: object, data: Bytes = _NOTHING) -> list[Bytes]:
        """Return the data of all hosts, by host, which must make the same call."""
        member, hosts = self._member, self._hosts
        here, leaders = member.layout.host, member.layout.leaders
        own = _HEADER.pack(*member.call, _hash(details), member.calls, len(data))
        # Those of this host and of the ones after it, in turn.
        records = [np.concatenate([np.frombuffer(own, np.uint8), data])]
        step = 1
        while step < hosts:
            count = min(step, hosts - step)
            to, source = leaders[here - step], leaders[(here + step) % hosts]
            into = self._received[step : step + count].reshape(-1)
            sent = records[0] if count == 1 else np.concatenate(records[:count])
            received = member.receive(into, source, RECORD)
            member.wait([received, member.send(sent, to, RECORD)])
            records += _cut(into, count)
            step *= 2
        shared = [_NOTHING] * hosts
        for distance, record in enumerate(records):
            host = (here + distance) % hosts
            shared[host] = self._checked(host, record, details)
        return shared

    def _checked(self, host: int, record: Bytes, details: object) -> Bytes:
        """Return the data of a record, if that host makes the same call."""
        *call, hashed, number, _ = _HEADER.unpack(record[: _HEADER.size].tobytes())
        theirs: Described = tuple(call)
        member = self._member
        same = (theirs, hashed, number) == (member.call, _hash(details), member.calls)
        if not same:
            leader = member.layout.leaders[host]
            member.end_for(Status.MISMATCH, leader, theirs)
        return record[_HEADER.size :]


def _cut(memory: Bytes, count: int) -> Sequence[Bytes]:
    """Return so many records that lie one after the other."""
    records, begin = [], 0
    for _ in range(count):
        length = _HEADER.unpack(memory[begin : begin + _HEADER.size].tobytes())[-1]
        end = begin + _HEADER.size + length
        records.append(memory[begin:end])
        begin = end
    return records


def _hash(details: object) -> int:
    return hash(details) & (1 << 64) - 1
