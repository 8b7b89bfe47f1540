"""The operations that hand rows on, among the members of several hosts.

Small rows go in one exchange of records among the leaders: each host's members hand
their rows to the leader, and get back the rows of all hosts. Larger rows go in blocks.
"""

from collections.abc import Sequence
from ctypes import memmove
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from popdist.engine import _core
from popdist.engine.call_table import EngineCall
from popdist.engine.hosts.hosts_member import DATA, PART, HostsMember
from popdist.engine.rows import BYTES, Rows
from popdist.engine.spec.operations import Operation

Bytes = NDArray[np.uint8]

# How many bytes go between hosts at once.
BLOCK_BYTES = 1 << 20


class HostExchanges:
    """Hands rows on among the members of a group on several hosts."""

    def __init__(self, member: HostsMember) -> None:
        self._member, self._share = member, member.comm.share_records
        self._wait = member.comm.await_transfers
        self._layout = member.layout
        self._size = len(member.layout.instances)

    def barrier(self) -> None:
        self._barrier_on_host()
        if self._layout.is_leader:
            self._share(b"")
        self._barrier_on_host()

    def broadcast(self, row: Rows, root: int) -> None:
        layout = self._layout
        if layout.is_leader:
            self._share(b"")
        source, targets = layout.broadcast_tree(root)
        if layout.rank == root:
            sends = [n for to in targets for n in self._send(*_memory_of(row), to)]
            self._broadcast_on_host(*_memory_of(row), layout.local_rank)
            self._wait(sends)
        elif source is None:
            self._broadcast_on_host(*_memory_of(row), layout.local_ranks.index(root))
        else:
            receives = self._receive_on_leader(*_memory_of(row), source)
            self._broadcast_received(*_memory_of(row), receives, targets)

    def all_gather(self, source: Rows, target: Rows, lengths: tuple[int, ...]) -> None:
        if sum(lengths) <= _core.RECORD_DATA_BYTES:
            gathered = self._gather_small(source, lengths)
            data = self._handed_back(gathered, sum(lengths))
            memmove(target.address, address_of(data), target.nbytes)
            return
        layout = self._layout
        if layout.is_leader:
            self._share(b"")
        begins = layout.begins(lengths)
        # All rows of a host lie together in `where`: in the target, if its rows do.
        where = target.address
        scratch = None
        if not layout.in_blocks:
            scratch = self._member.new_scratch(target.nbytes)
            where = address_of(scratch)
        begin, end = begins[layout.host : layout.host + 2]
        local = [lengths[rank] for rank in layout.local_ranks]
        self._exchange(Operation.ALL_GATHER, -1, local, source.address, where + begin)
        # From the next host on, so that hosts do not all wait for the same one.
        hosts = len(layout.leaders)
        others = [(layout.host + step) % hosts for step in range(1, hosts)]
        parts = {
            host: (where + begins[host], begins[host + 1] - begins[host])
            for host in others
        }
        receives = {
            host: self._receive_on_leader(*parts[host], layout.leaders[host])
            for host in others
        }
        sends: list[int] = []
        if layout.is_leader:
            for host in reversed(others):
                leader = layout.leaders[host]
                sends += self._send(where + begin, end - begin, leader)
        for host in others:
            self._broadcast_received(*parts[host], receives[host])
        self._wait(sends)
        if scratch is not None:
            self._place(scratch, target, lengths)

    def gather(
        self, source: Rows, target: Rows, lengths: tuple[int, ...], root: int
    ) -> None:
        layout = self._layout
        if layout.is_leader:
            self._share(b"")
        begins = layout.begins(lengths)
        local = [lengths[rank] for rank in layout.local_ranks]
        to, here = layout.host_of[root], layout.host
        nbytes = begins[here + 1] - begins[here]
        if here != to:
            scratch = self._member.new_scratch(nbytes if layout.is_leader else 0)
            at = address_of(scratch)
            self._exchange(Operation.GATHER, 0, local, source.address, at)
            if layout.is_leader:
                self._wait(self._send(at, nbytes, root))
            return
        is_root = layout.rank == root
        whole = self._member.new_scratch(
            0 if layout.in_blocks or not is_root else sum(lengths)
        )
        where = target.address if layout.in_blocks else address_of(whole)
        transfers: list[int] = []
        for host, leader in enumerate(layout.leaders):
            if is_root and host != here:
                length = begins[host + 1] - begins[host]
                transfers += self._receive(where + begins[host], length, leader)
        at = where + begins[here] if is_root else 0
        local_root = layout.local_ranks.index(root)
        self._exchange(Operation.GATHER, local_root, local, source.address, at)
        self._wait(transfers)
        if is_root and not layout.in_blocks:
            self._place(whole, target, lengths)

    def scatter(
        self, source: Rows, target: Rows, lengths: tuple[int, ...], root: int
    ) -> None:
        layout = self._layout
        if layout.is_leader:
            self._share(b"")
        begins = layout.begins(lengths)
        local = [lengths[rank] for rank in layout.local_ranks]
        here = layout.host
        nbytes = begins[here + 1] - begins[here]
        if here != layout.host_of[root]:
            scratch = self._member.new_scratch(nbytes if layout.is_leader else 0)
            at = address_of(scratch)
            if layout.is_leader:
                self._wait(self._receive(at, nbytes, root))
            self._exchange(Operation.SCATTER, 0, local, at, target.address)
            return
        transfers: list[int] = []
        at = 0
        if layout.rank == root:
            ordered = self._by_host(source, lengths)
            where = source.address if ordered is None else address_of(ordered)
            at = where + begins[here]
            for host, leader in enumerate(layout.leaders):
                if host != here:
                    length = begins[host + 1] - begins[host]
                    transfers += self._send(where + begins[host], length, leader)
        local_root = layout.local_ranks.index(root)
        self._exchange(Operation.SCATTER, local_root, local, at, target.address)
        self._wait(transfers)

    def all_to_all(self, source: Rows, target: Rows) -> None:
        layout = self._layout
        if layout.is_leader:
            self._share(b"")
        each = source.nbytes // self._size
        received = self._member.new_scratch(source.nbytes)
        where = address_of(received)
        transfers: list[int] = []
        for step in range(1, self._size):
            to, source_rank = (layout.rank + step) % self._size, (layout.rank - step)
            source_rank %= self._size
            if layout.host_of[source_rank] != layout.host:
                at = where + source_rank * each
                transfers += self._receive(at, each, source_rank, PART)
            if layout.host_of[to] != layout.host:
                transfers += self._send(source.address + to * each, each, to, PART)
        self._all_to_all_on_host(source.address, where, each)
        self._wait(transfers)
        memmove(target.address, where, target.nbytes)

    # --- Within the host

    def _broadcast_on_host(self, address: int, nbytes: int, root: int = 0) -> None:
        """Overwrite memory of this host's members with the memory of one of them."""
        lengths = [nbytes] * len(self._layout.local_ranks)
        self._exchange(Operation.BROADCAST, root, lengths, address, address)

    def _barrier_on_host(self) -> None:
        if len(self._layout.local_ranks) > 1:
            self._member.comm.run(None, EngineCall(Operation.BARRIER))

    def _exchange(
        self,
        operation: Operation,
        root: int,
        lengths: Sequence[int],
        source: int,
        target: int,
    ) -> None:
        shape = (sum(lengths),)
        arrays = [(Rows((source,), shape, BYTES), Rows((target,), shape, BYTES))]
        call = EngineCall(operation, arrays, BYTES, root=root, lengths=lengths)
        self._member.comm.run(None, call)

    def _all_to_all_on_host(self, source: int, target: int, each: int) -> None:
        """Exchange the parts of this host's members, which need not lie together."""
        ranks = self._layout.local_ranks
        sent = np.empty(len(ranks) * each, np.uint8)
        received = np.empty(len(ranks) * each, np.uint8)
        out, into = address_of(sent), address_of(received)
        for index, rank in enumerate(ranks):
            memmove(out + index * each, source + rank * each, each)
        self._exchange(Operation.ALL_TO_ALL, -1, [each] * len(ranks), out, into)
        for index, rank in enumerate(ranks):
            memmove(target + rank * each, into + index * each, each)

    # --- Between hosts

    def _gather_small(self, source: Rows, lengths: Sequence[int]) -> Bytes | None:
        """Return on the leader the bytes of all members, in their order, else None."""
        layout = self._layout
        local = [lengths[rank] for rank in layout.local_ranks]
        data = np.empty(sum(local) if layout.is_leader else 0, np.uint8)
        places = source.address, address_of(data)
        self._exchange(Operation.GATHER, 0, local, *places)
        if not layout.is_leader:
            return None
        whole = np.frombuffer(b"".join(self._share(data)), np.uint8)
        return whole if layout.in_blocks else self._in_order(whole, lengths)

    def _handed_back(self, data: Bytes | None, nbytes: int) -> Bytes:
        """Return on all members of this host what the leader has."""
        if data is None:
            data = np.empty(nbytes, np.uint8)
        self._broadcast_on_host(address_of(data), nbytes)
        return data

    def _send(self, address: int, nbytes: int, to: int, kind: int = DATA) -> list[int]:
        return [
            self._member.comm.begin_send(to, kind, address + begin, length)
            for begin, length in _blocks(nbytes)
        ]

    def _receive(
        self, address: int, nbytes: int, source: int, kind: int = DATA
    ) -> list[int]:
        return [
            self._member.comm.begin_receive(source, kind, address + begin, length)
            for begin, length in _blocks(nbytes)
        ]

    def _receive_on_leader(self, address: int, nbytes: int, source: int) -> list[int]:
        """Begin to receive in memory of this host's leader."""
        return self._receive(address, nbytes, source) if self._layout.is_leader else []

    def _broadcast_received(
        self,
        address: int,
        nbytes: int,
        receives: Sequence[int],
        targets: Sequence[int] = (),
    ) -> None:
        """Overwrite memory of all members of this host with what the leader receives.

        Args:
            receives: The receives that the leader has begun, one for each block.
            targets: The members to which it forwards each block.
        """
        sends: list[int] = []
        for index, (begin, length) in enumerate(_blocks(nbytes)):
            if self._layout.is_leader:
                self._wait([receives[index]])
                for to in targets:
                    sends += self._send(address + begin, length, to)
            self._broadcast_on_host(address + begin, length)
        self._wait(sends)

    # --- Members that are not in blocks

    def _place(self, data: Bytes, target: Rows, lengths: Sequence[int]) -> None:
        """Copy the parts of members, host by host, to where they belong."""
        ordered = self._in_order(data, lengths)
        memmove(target.address, address_of(ordered), target.nbytes)

    def _in_order(self, data: Bytes, lengths: Sequence[int]) -> Bytes:
        """Return the parts of members, which are given host by host, in their order."""
        ranks = [rank for members in self._layout.members for rank in members]
        begins = accumulate([lengths[rank] for rank in ranks], initial=0)
        parts = {
            rank: data[b : b + lengths[rank]]
            for rank, b in zip(ranks, begins, strict=False)
        }
        return np.concatenate([parts[rank] for rank in range(self._size)])

    def _by_host(self, source: Rows, lengths: Sequence[int]) -> Bytes | None:
        """Return the parts of members host by host; None where they lie so."""
        if self._layout.in_blocks:
            return None
        begins = list(accumulate(lengths, initial=0))
        ordered, at = self._member.new_scratch(source.nbytes), 0
        for members in self._layout.members:
            for rank in members:
                place = address_of(ordered) + at
                memmove(place, source.address + begins[rank], lengths[rank])
                at += lengths[rank]
        return ordered


def _memory_of(row: Rows) -> tuple[int, int]:
    """Return the address of a row, and its number of bytes."""
    return row.address, row.nbytes


def address_of(data: Bytes) -> int:
    """Return where memory begins."""
    address: int = data.__array_interface__["data"][0]
    return address


def _blocks(nbytes: int) -> list[tuple[int, int]]:
    """Return where each block of so many bytes begins, and how long it is."""
    return [
        (begin, min(BLOCK_BYTES, nbytes - begin))
        for begin in range(0, nbytes, BLOCK_BYTES)
    ]
