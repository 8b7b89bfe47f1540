"""Send and receive between members, on one host or on two."""

from struct import Struct
from typing import Any

import numpy as np

from popdist.engine.hosts.member import POINT, HostsMember
from popdist.engine.rows import Rows
from popdist.engine.spec.operations import Operation

# What comes before the elements: dtype, and how many there are.
_LABEL = Struct("<2Q")
# The most bytes that go between hosts at once.
_BLOCK_BYTES = 64 << 20


def send_row(member: HostsMember, row: Rows, to: int) -> None:
    """Send a row to one member, which must receive one like it."""
    layout = member.layout
    if layout.host_of[to] == layout.host:
        peer = layout.local_ranks.index(to)
        member.comm.send(peer, row.dtype, row.address, row.nbytes)
        return
    label = member.new_scratch(_LABEL.size)
    label[:] = np.frombuffer(_LABEL.pack(row.dtype, row.count), np.uint8)
    transfers = [member.send(label, to, POINT)]
    transfers += [member.send(part, to, POINT) for part in _parts(member, row)]
    member.wait(transfers)


def receive_row(member: HostsMember, row: Rows, source: int) -> None:
    """Overwrite the row with the one that a member sends."""
    layout = member.layout
    if layout.host_of[source] == layout.host:
        peer = layout.local_ranks.index(source)
        member.comm.receive(peer, row.dtype, row.address, row.nbytes)
        return
    label = member.new_scratch(_LABEL.size)
    member.wait([member.receive(label, source, POINT)])
    dtype, count = _LABEL.unpack(label.tobytes())
    if (dtype, count) != (row.dtype, row.count):
        theirs = (Operation.SEND, dtype, 0, 0, layout.rank, count, 0, 0)
        member.end_call(source, theirs)
    member.wait([member.receive(part, source, POINT) for part in _parts(member, row)])


def _parts(member: HostsMember, row: Rows) -> list[Any]:
    fromaddress = member.world.mpi.buffer.fromaddress
    return [
        fromaddress(row.address + begin, min(_BLOCK_BYTES, row.nbytes - begin))
        for begin in range(0, row.nbytes, _BLOCK_BYTES)
    ]
