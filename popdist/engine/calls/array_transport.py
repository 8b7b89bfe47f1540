"""The operations on arrays of any framework. Their arguments have been checked."""

from collections.abc import Sequence
from ctypes import memmove
from itertools import accumulate, pairwise
from math import prod
from typing import Any, Generic

import numpy as np

from popdist.engine._core import address_of
from popdist.engine.calls.array_rows import rows_of
from popdist.engine.calls.destinations import check_fits
from popdist.engine.rows import (
    BYTES,
    A,
    Framework,
    Pair,
    Rows,
    copy_results,
    destination_of,
    pairs_of,
    readable_rows,
    row_of,
)
from popdist.engine.spec.operations import AUTO, Operation
from popdist.engine.transport import Transport

# Before members gather arrays, they exchange packets. A packet has an array's header,
# which is the number of its dtype, its number of axes, and their lengths; and the
# array's bytes, if they fit. The core also makes and reads packets.
_MOST_AXES = 14
HEADER = _MOST_AXES + 2
_HEADER_BYTES = HEADER * 8
_DATA_BYTES = 384
_PACKET = (_HEADER_BYTES + _DATA_BYTES) // 8

Numbers = np.ndarray[Any, np.dtype[np.int64]]


class ArrayTransport(Generic[A]):
    """A transport that takes arrays of a framework, for one call.

    It describes the arrays as rows, and copies results that went to scratch memory. Its
    roots are members.
    """

    __slots__ = ("_framework", "_name", "_transport")

    def __init__(
        self, transport: Transport, framework: Framework[A], name: int
    ) -> None:
        """Carry arrays.

        Args:
            name: The number of the call's name.
        """
        self._transport = transport
        self._framework = framework
        self._name = name

    def barrier(self) -> None:
        """Return when all members have called it."""
        self._transport.barrier(self._name)

    def send(self, array: A, to: int) -> None:
        """Send an array to one member, which must receive one like it."""
        row = self._framework.exchanged_row(self._framework.readable(array))
        self._transport.send(row, to)

    def receive(self, array: A, source: int) -> None:
        """Overwrite the array with the one that member `source` sends."""
        row = self._framework.readable(array)
        self._transport.receive(self._framework.exchanged_row(row), source)
        if row is not array:
            self._framework.copy(row, array)

    def broadcast(self, source: A | None, targets: Sequence[A], root: int) -> None:
        """Overwrite the targets with the root's source, which is None elsewhere."""
        framework = self._framework
        row = framework.readable(targets[0] if source is None else source)
        self._transport.broadcast(framework.exchanged_row(row), root, name=self._name)
        # The first target may be memory of the source, so the others are its copies.
        for target in targets:
            if row is not target:
                framework.copy(row, target)
                row = target

    def gather(
        self, own: A, targets: Sequence[A], lengths: Sequence[int], root: int
    ) -> None:
        """Gather the bytes of all members' arrays in the targets, one after the other.

        Args:
            targets: The arrays that get the result; none where it is not wanted.
            lengths: How many bytes each member has.
            root: The member that gets the result; -1 for all.
        """
        framework, transport = self._framework, self._transport
        source = row_of(framework, own)
        # This member's share of the result may be where its own array lies already.
        target, copies = destination_of(
            framework,
            targets or [framework.new_bytes(0)],
            source,
            own_begin=sum(lengths[: transport.rank]),
        )
        if root < 0:
            transport.all_gather(source, target, lengths, name=self._name)
        else:
            transport.gather(source, target, lengths, root, name=self._name)
        copy_results(framework, copies)

    def gather_described(
        self,
        operation: Operation,
        rows: Sequence[A],
        headers: Sequence[Sequence[int]],
        counts: Sequence[int],
        targets: Sequence[A] | None,
        root: int = -1,
        packets: bytes | None = None,
    ) -> Sequence[A] | None:
        """Gather arrays that may differ in shape and dtype, after their headers.

        Args:
            rows: This member's arrays, each in one piece.
            headers: The headers of these arrays.
            counts: How many arrays each member has.
            targets: The arrays that get the result; None to make new ones.
            root: The member that gets the result; -1 for all.
            packets: The packets of all members, if they have been exchanged.

        Returns:
            The targets or the new arrays; None on a member that gets no result.
        """
        if packets is None:
            own = self._packets_of(rows, headers)
            words = self.exchange_numbers(own, counts, operation)
        else:
            words = np.frombuffer(packets, np.int64).reshape(-1, _PACKET)
        framework = self._framework
        numbers = words[:, :HEADER].tolist()
        layouts = [described(framework, header) for header in numbers]
        sizes = [prod(shape) * dtype.itemsize for dtype, shape in layouts]
        is_wanted = root in (-1, self._transport.rank)
        is_new = is_wanted and targets is None
        memory = framework.new_bytes(sum(sizes) if is_new else 0)
        into: Sequence[A] = [memory]
        if is_wanted and targets is not None:
            for target, (dtype, shape) in zip(targets, layouts, strict=True):
                check_fits(target, shape, dtype)
            into = targets
        if max(sizes) > _DATA_BYTES:
            self._gather_rows(rows, into, sizes, counts, root)
        elif is_wanted:
            self._unpack(words, into, sizes)
        if not is_new:
            return targets if is_wanted else None
        begins = accumulate(sizes, initial=0)
        return [
            framework.elements(memory, begin, dtype, shape)
            for begin, (dtype, shape) in zip(begins, layouts, strict=False)
        ]

    def _packets_of(
        self, rows: Sequence[A], headers: Sequence[Sequence[int]]
    ) -> Numbers:
        """Return the packets of arrays with these headers."""
        packets = np.zeros((len(rows), _PACKET), np.int64)
        packets[:, :HEADER] = headers
        for row, place in zip(rows, _places_in(packets), strict=True):
            if row.nbytes <= _DATA_BYTES:
                memmove(place, self._framework.address_of(row), row.nbytes)
        return packets

    def _unpack(
        self, packets: Numbers, targets: Sequence[A], sizes: Sequence[int]
    ) -> None:
        """Copy the arrays in packets, of these sizes, one after the other."""
        row, copies = destination_of(self._framework, targets)
        to = row.address
        for place, size in zip(_places_in(packets), sizes, strict=True):
            memmove(to, place, size)
            to += size
        copy_results(self._framework, copies)

    def _gather_rows(
        self,
        rows: Sequence[A],
        targets: Sequence[A],
        sizes: Sequence[int],
        counts: Sequence[int],
        root: int,
    ) -> None:
        """Gather all members' arrays, of these sizes, one after the other."""
        own = rows[0]
        if len(rows) > 1:
            own = self._framework.new_bytes(sum(row.nbytes for row in rows))
            to = self._framework.address_of(own)
            for row in rows:
                memmove(to, self._framework.address_of(row), row.nbytes)
                to += row.nbytes
        begins = list(accumulate(sizes, initial=0))
        edges = [begins[array] for array in accumulate(counts, initial=0)]
        lengths = [end - begin for begin, end in pairwise(edges)]
        self.gather(own, targets, lengths, root)

    def exchange_numbers(
        self,
        numbers: Sequence[Sequence[int]] | Numbers,
        counts: Sequence[int],
        prelude_to: Operation,
    ) -> Numbers:
        """Return the rows of whole numbers of all members.

        Args:
            numbers: This member's rows. All rows of all members have one length.
            counts: How many rows each member has.
            prelude_to: The operation that the numbers describe.
        """
        own = np.asarray(numbers, np.int64)
        rows = np.empty((sum(counts), own.shape[1]), np.int64)
        lengths = [count * own.shape[1] * own.itemsize for count in counts]
        call = rows_of([own]), rows_of([rows]), lengths
        self._transport.all_gather(*call, name=self._name, prelude_to=prelude_to)
        return rows

    def share_numbers(
        self, numbers: Sequence[int], root: int, prelude_to: Operation
    ) -> list[int]:
        """Return the root's whole numbers. All members give as many."""
        row = np.array(numbers, np.int64)
        call, name = (rows_of([row]), root), self._name
        self._transport.broadcast(*call, name=name, prelude_to=prelude_to)
        numbers_of_root: list[int] = row.tolist()
        return numbers_of_root

    def scatter(
        self,
        source: A | None,
        targets: Sequence[A],
        lengths: Sequence[int],
        root: int,
        dtype: int = BYTES,
    ) -> None:
        """Give each member its share of the root's source, which is None elsewhere.

        Args:
            lengths: How many bytes each member gets.
            dtype: The code of the elements.
        """
        framework = self._framework
        read = None if source is None else row_of(framework, source, dtype)
        target, copies = destination_of(framework, targets, read, dtype)
        call = read or target, target, lengths, root
        self._transport.scatter(*call, name=self._name)
        copy_results(framework, copies)

    def all_to_all(self, source: Rows, targets: Sequence[A]) -> None:
        """Exchange equal shares: the source's leading axis has one for each member."""
        call = self._framework, targets, source, source.dtype
        target, copies = destination_of(*call)
        self._transport.all_to_all(source, target, name=self._name)
        copy_results(self._framework, copies)

    def reduce(
        self, rows: Sequence[A], target: A | None, reduction: int, root: int
    ) -> A | None:
        """Reduce the rows of all members, and return the result on the root.

        Args:
            target: The array for the result; None to make a new one.
        """
        is_root = self._transport.rank == root
        if target is None or not is_root:
            target = self._framework.empty_like(rows[0])
        (pair,), copies = pairs_of(self._framework, [(rows, [target])])
        self._transport.reduce(*pair, reduction, root, name=self._name)
        copy_results(self._framework, copies)
        return target if is_root else None

    def reduce_scatter(
        self, rows: Sequence[A], targets: Sequence[A], reduction: int
    ) -> None:
        """Reduce the rows of all members, and write this member's shares."""
        source = readable_rows(self._framework, rows)
        call = self._framework, targets, source, source.dtype
        target, copies = destination_of(*call)
        self._transport.reduce_scatter(source, target, reduction, name=self._name)
        copy_results(self._framework, copies)

    def all_reduce(
        self,
        arrays: Sequence[tuple[Sequence[A], Sequence[A]]],
        reduction: int,
        algorithm: int = AUTO,
    ) -> None:
        """Reduce arrays of any dtypes, with one call for all that have the same.

        Args:
            arrays: For each array, the rows to read and the rows to write.
        """
        pairs, copies = pairs_of(self._framework, arrays)
        batches: dict[int, list[Pair]] = {}
        for pair in pairs:
            batches.setdefault(pair[0].dtype, []).append(pair)
        how: Any = {"algorithm": algorithm, "name": self._name}
        for batch in batches.values():
            self._transport.all_reduce(batch, reduction, **how)
        copy_results(self._framework, copies)


def header_of(framework: Framework[A], array: A) -> list[int]:
    """Return an array's header.

    Raises:
        TypeError: The framework has no number for the array's dtype.
        ValueError: The array has too many axes.
    """
    axes = len(array.shape)
    if axes > _MOST_AXES:
        raise ValueError(
            f"The array has {axes} axes, but can have at most {_MOST_AXES} here."
        )
    number = framework.number_of_dtype(array.dtype)
    return [number, axes, *array.shape, *[0] * (_MOST_AXES - axes)]


def described(
    framework: Framework[A], header: Sequence[int]
) -> tuple[Any, tuple[int, ...]]:
    """Return the dtype and the shape of the array with this header."""
    number, axes, *lengths = header
    return framework.dtype_of_number(number), tuple(lengths[:axes])


def _places_in(packets: Numbers) -> range:
    """Return the addresses of the arrays in packets."""
    pitch, begin = packets.strides[0], address_of(packets)
    return range(begin + _HEADER_BYTES, begin + packets.nbytes, pitch)
