"""Send and receive between members, on one host or on two."""

from collections.abc import Iterator
from functools import partial
from struct import Struct

import numpy as np

from popdist.engine.call_table import EngineCall
from popdist.engine.hosts.exchanges import address_of
from popdist.engine.hosts.hosts_member import POINT, HostsMember
from popdist.engine.rows import Rows
from popdist.engine.spec.operations import Operation

# The header before the elements: their dtype and number.
_LABEL = Struct("<2Q")
# The most bytes that go between hosts at once.
_BLOCK_BYTES = 64 << 20


def send_row(member: HostsMember, row: Rows, to: int) -> None:
    """Send a row to one member, which must receive one like it."""
    layout = member.layout
    if layout.host_of[to] == layout.host:
        peer = layout.local_ranks.index(to)
        _run_on_host(member, Operation.SEND, row, peer)
        return
    label = member.new_scratch(_LABEL.size)
    label[:] = np.frombuffer(_LABEL.pack(row.dtype, row.count), np.uint8)
    send = partial(member.comm.begin_send, to, POINT)
    transfers = [send(address_of(label), label.nbytes)]
    transfers += [send(*part) for part in _parts(row)]
    member.comm.await_transfers(transfers)


def receive_row(member: HostsMember, row: Rows, source: int) -> None:
    """Overwrite the row with the one that a member sends."""
    layout = member.layout
    if layout.host_of[source] == layout.host:
        peer = layout.local_ranks.index(source)
        _run_on_host(member, Operation.RECEIVE, row, peer)
        return
    label = member.new_scratch(_LABEL.size)
    receive = partial(member.comm.begin_receive, source, POINT)
    member.comm.await_transfers([receive(address_of(label), label.nbytes)])
    dtype, count = _LABEL.unpack(label.tobytes())
    if (dtype, count) != (row.dtype, row.count):
        theirs = (Operation.SEND, dtype, 0, 0, layout.rank, count, 0, 0)
        member.end_call(source, theirs)
    member.comm.await_transfers([receive(*part) for part in _parts(row)])


def _run_on_host(
    member: HostsMember, operation: Operation, row: Rows, peer: int
) -> None:
    call = EngineCall(operation, [(row, row)], row.dtype, root=peer)
    member.comm.run(None, call)


def _parts(row: Rows) -> Iterator[tuple[int, int]]:
    """Yield the address of each part of a row, and its number of bytes."""
    for begin in range(0, row.nbytes, _BLOCK_BYTES):
        yield row.address + begin, min(_BLOCK_BYTES, row.nbytes - begin)
