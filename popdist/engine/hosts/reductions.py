"""Reductions among the members of several hosts, in the order of the tree.

Rows of all replicas go between hosts where that is little; else nodes of the tree, to
which each host reduces its own: the result has the same bits in both cases.
"""

from collections.abc import Sequence
from ctypes import memmove
from itertools import accumulate
from typing import Any

import numpy as np

from popdist.engine import _core
from popdist.engine.hosts.exchanges import HostExchanges, address_of
from popdist.engine.hosts.member import NODES, RESULTS, HostsMember
from popdist.engine.hosts.records import MOST_BYTES, Bytes, Records
from popdist.engine.hosts.waiting import Transfer
from popdist.engine.rows import Pair
from popdist.engine.spec.dtypes import DTYPES, accumulation_code_of, item_bytes_of
from popdist.engine.spec.operations import Operation
from popdist.engine.spec.tree import nodes_of

_BFLOAT16, _FLOAT16, _BOOL = DTYPES["bfloat16"], DTYPES["float16"], DTYPES["bool"]
# How many elements each share of a block is a multiple of: a cache line of most.
_GRAIN = 64
# How many bytes of a block of nodes a host has at once, and how many blocks are on
# their way: one is being reduced, one goes between the hosts, one is handed out.
BLOCK_BYTES = 1 << 19
_DEPTH = 3
# How many members of each host exchange its nodes with other hosts. More of them share
# the work, but wait for each other more often.
CARRIERS = 1


class _Arrays:
    """The arrays of a reduction as if they were one."""

    def __init__(self, arrays: Sequence[Pair]) -> None:
        self.dtype = arrays[0][0].dtype
        self.item = item_bytes_of(self.dtype)
        self._arrays = arrays
        self._begins = list(accumulate([s.count for s, _ in arrays], initial=0))
        self.count = self._begins[-1]
        # Keeps the memory while messages may be under way.
        self.owners = [(s.owner, t.owner) for s, t in arrays]

    def pieces(
        self, begin: int, end: int
    ) -> list[tuple[int, tuple[int, ...], tuple[int, ...]]]:
        """Return the pieces of [begin, end): elements, where each row is, and goes."""
        pieces = []
        for index, (source, target) in enumerate(self._arrays):
            first = max(begin, self._begins[index])
            last = min(end, self._begins[index + 1])
            if first < last:
                skip = (first - self._begins[index]) * self.item
                read = tuple([at + skip for at in source.addresses])
                written = tuple([at + skip for at in target.addresses])
                pieces.append((last - first, read, written))
        return pieces

    def write(self, begin: int, end: int, result: int) -> None:
        """Copy elements of the result to all rows that get them."""
        for count, _, written in self.pieces(begin, end):
            for place in written:
                if place != result:
                    memmove(place, result, count * self.item)
            result += count * self.item


class SmallReduction:
    """A reduction for which the rows of all replicas go between the hosts.

    The leader of each host reduces them all. Longer arrays go in pieces.
    """

    def __init__(
        self,
        member: HostsMember,
        records: Records,
        replicas: Sequence[int],
        arrays: Sequence[Pair],
        reduction: int,
    ) -> None:
        self._member, self._replicas = member, replicas
        self._arrays, self._reduction = _Arrays(arrays), reduction
        self._exchanges = HostExchanges(member, records)

    def run(self, details: object) -> None:
        """Make the reduction."""
        arrays = self._arrays
        at_once = max(1, MOST_BYTES // (arrays.item * sum(self._replicas)))
        for begin in range(0, max(arrays.count, 1), at_once):
            self._reduce(begin, min(begin + at_once, arrays.count), details)

    def _reduce(self, begin: int, end: int, details: object) -> None:
        arrays, nbytes = self._arrays, (end - begin) * self._arrays.item
        own = np.empty(nbytes * self._replicas[self._member.rank], np.uint8)
        at = address_of(own)
        for row in range(self._replicas[self._member.rank]):
            for count, read, _ in arrays.pieces(begin, end):
                memmove(at, read[row], count * arrays.item)
                at += count * arrays.item
        lengths = [nbytes * replicas for replicas in self._replicas]
        rows = self._exchanges.gather_all(details, own, lengths)
        result = np.empty(nbytes, np.uint8)
        if rows is not None:
            self._complete(rows, end - begin, result)
        self._exchanges.broadcast_on_host(address_of(result), nbytes)
        arrays.write(begin, end, address_of(result))

    def _complete(self, rows: Bytes, count: int, result: Bytes) -> None:
        dtype = self._arrays.dtype
        nodes = _widened(rows, dtype)
        total = sum(self._replicas)
        first, pitch = address_of(nodes), nodes.nbytes // total
        self._member.comm.complete_nodes(
            (1,) * total,
            dtype,
            self._reduction,
            count,
            [first + node * pitch for node in range(total)],
            [address_of(result)],
        )


class HostsReduction:
    """A reduction for which nodes of the tree go between the hosts, in blocks.

    Of each block every host has a part of the elements to complete: it gets their nodes
    from the others, and hands the others the result. Some members of each host share
    the elements among them, those of one number on all hosts exchanging theirs.
    """

    def __init__(
        self,
        member: HostsMember,
        records: Records,
        replicas: Sequence[int],
        arrays: Sequence[Pair],
        reduction: int,
    ) -> None:
        layout = member.layout
        self.member, self._records = member, records
        self.arrays, self.reduction = _Arrays(arrays), reduction
        self.parts = [sum(replicas[r] for r in ranks) for ranks in layout.members]
        bounds = list(accumulate(self.parts, initial=0))
        # How many nodes each host has of an element.
        self.nodes = [
            len(list(nodes_of(bounds[host], bounds[host + 1])))
            for host in range(len(self.parts))
        ]
        local = [replicas[rank] for rank in layout.local_ranks]
        self.split = _core.Split(layout.local_rank, local, bounds[layout.host])
        self.carriers = min(CARRIERS, *(len(ranks) for ranks in layout.members))
        self.wide = item_bytes_of(accumulation_code_of(self.arrays.dtype))
        self.block = _block_elements(self.wide, max(self.nodes))
        self._slots = [_Slot(self) for _ in range(_DEPTH)]

    def run(self, details: object) -> None:
        """Make the reduction."""
        if self.member.layout.is_leader:
            self._records.share(details)
        count = self.arrays.count
        blocks = -(-count // self.block)
        for step in range(blocks + 2):
            if step < blocks:
                begin = step * self.block
                end = min(begin + self.block, count)
                self._slots[step % _DEPTH].reduce(begin, end)
            if 1 <= step <= blocks:
                self._slots[(step - 1) % _DEPTH].complete()
            if step >= 2:
                self._slots[(step - 2) % _DEPTH].hand_out()


class _Slot:
    """A block of a reduction on its way, and the memory that it needs."""

    def __init__(self, whole: HostsReduction) -> None:
        self._whole, self._member = whole, whole.member
        layout = self._member.layout
        self._hosts, self._host = len(layout.members), layout.host
        self._peers = [
            ranks[layout.local_rank] if layout.local_rank < whole.carriers else -1
            for ranks in layout.members
        ]
        self._carries = layout.local_rank < whole.carriers
        share = whole.block if self._carries else 0
        own = whole.nodes[self._host]
        self._nodes = np.empty((own, share * whole.wide), np.uint8)
        self._result = np.empty(share * whole.arrays.item, np.uint8)
        self._received: list[Bytes] = []

    def reduce(self, begin: int, end: int) -> None:
        """Reduce a block to this host's nodes, and exchange these with other hosts."""
        whole, layout = self._whole, self._member.layout
        self._begin, self._end = begin, end
        shares = _shares(end - begin, whole.carriers)
        self._lengths = [*shares, *[0] * (len(layout.local_ranks) - len(shares))]
        count = self._lengths[layout.local_rank]
        pieces = whole.arrays.pieces(begin, end)
        self._member.comm.reduce_to_nodes(
            whole.split,
            [(length, read, None) for length, read, _ in pieces],
            [(length,) for length, _, _ in pieces],
            whole.arrays.dtype,
            whole.reduction,
            0,
            self._lengths,
            [address_of(row) for row in self._nodes],
        )
        if self._carries:
            self._spans = list(accumulate(_shares(count, self._hosts), initial=0))
            self._exchange_nodes()

    def complete(self) -> None:
        """Complete this host's part of the block, and hand it to other hosts."""
        if not self._carries:
            return
        whole, item, wide = self._whole, self._whole.arrays.item, self._whole.wide
        self._member.wait(self._incoming)
        begin, end = self._spans[self._host : self._host + 2]
        addresses = []
        for host, nodes in enumerate(whole.nodes):
            if host == self._host:
                addresses += [address_of(row) + begin * wide for row in self._nodes]
            else:
                first = address_of(self._received[host])
                addresses += [first + j * (end - begin) * wide for j in range(nodes)]
        self._member.comm.complete_nodes(
            whole.parts,
            whole.arrays.dtype,
            whole.reduction,
            end - begin,
            addresses,
            [address_of(self._result) + begin * item],
        )
        mine = self._result[begin * item : end * item]
        for peer in self._others():
            self._outgoing.append(self._member.send(mine, self._peers[peer], RESULTS))

    def hand_out(self) -> None:
        """Give all members of this host the result of the block."""
        whole, item = self._whole, self._whole.arrays.item
        if self._carries:
            self._member.wait([*self._results, *self._outgoing])
        pieces = whole.arrays.pieces(self._begin, self._end)
        nbytes = (self._end - self._begin) * item
        scratch = None
        if len(pieces) == 1:
            out = pieces[0][2][0]
        else:
            scratch = np.empty(nbytes, np.uint8)
            out = address_of(scratch)
        self._member.comm.exchange(
            *(Operation.ALL_GATHER, 0, whole.arrays.dtype, -1, 0),
            [length * item for length in self._lengths],
            (),
            address_of(self._result),
            out,
        )
        whole.arrays.write(self._begin, self._end, out)

    def _others(self) -> list[int]:
        return [host for host in range(self._hosts) if host != self._host]

    def _exchange_nodes(self) -> None:
        """Begin to send nodes to the hosts that complete them, and to receive those."""
        whole, member, wide = self._whole, self._member, self._whole.wide
        item = whole.arrays.item
        begin, end = self._spans[self._host : self._host + 2]
        self._received = [
            np.empty(
                (end - begin) * wide * (0 if host == self._host else nodes), np.uint8
            )
            for host, nodes in enumerate(whole.nodes)
        ]
        self._incoming: list[Transfer] = []
        self._outgoing: list[Transfer] = []
        self._results: list[Transfer] = []
        for host in self._others():
            peer = self._peers[host]
            self._incoming.append(member.receive(self._received[host], peer, NODES))
            first, last = self._spans[host : host + 2]
            part = self._result[first * item : last * item]
            self._results.append(member.receive(part, peer, RESULTS))
        for host in self._others():
            first, last = self._spans[host : host + 2]
            rows = self._nodes[:, first * wide : last * wide]
            sent = rows[0] if len(rows) == 1 else np.ascontiguousarray(rows).reshape(-1)
            self._outgoing.append(member.send(sent, self._peers[host], NODES))


def _shares(count: int, parts: int) -> list[int]:
    """Return equal shares of so many elements, in whole lines; the last one is less."""
    each = -(-count // parts)
    each = -(-each // _GRAIN) * _GRAIN
    return [max(0, min(each, count - index * each)) for index in range(parts)]


def _block_elements(wide: int, nodes: int) -> int:
    elements = BLOCK_BYTES // wide // nodes
    return max(elements // _GRAIN, 1) * _GRAIN


def _widened(rows: Bytes, dtype: int) -> Any:
    """Return rows in the accumulation type."""
    if dtype == _FLOAT16:
        return rows.view(np.float16).astype(np.float32)
    if dtype == _BFLOAT16:
        return rows.view(np.uint16).astype(np.uint32) << 16
    if dtype == _BOOL:
        return (rows != 0).view(np.uint8)
    return rows
