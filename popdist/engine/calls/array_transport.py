"""The operations on arrays of any framework, whose arguments have been checked."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import prod
from typing import Any, Generic

import numpy as np

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

# A header describes an array to the other members: the number of its dtype, its number
# of axes, and their lengths.
_MOST_AXES = 14
HEADER = _MOST_AXES + 2


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
        # This member's part of the result may be where its own array lies already.
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
        own: A,
        headers: Sequence[Sequence[int]],
        counts: Sequence[int],
        targets: Sequence[A] | None,
        root: int,
    ) -> Sequence[A] | None:
        """Gather the arrays of all members, whose headers have been exchanged.

        Args:
            own: This member's arrays, in one piece of memory.
            headers: The headers of all members' arrays.
            counts: How many arrays each member has.
            targets: The arrays that get the result; None to make new ones.
            root: The member that gets the result; -1 for all.

        Returns:
            The targets or the new arrays; None on a member that gets no result.
        """
        framework = self._framework
        layouts = [described(framework, header) for header in headers]
        sizes = [prod(shape) * dtype.itemsize for dtype, shape in layouts]
        begins = list(accumulate(sizes, initial=0))
        edges = [begins[array] for array in accumulate(counts, initial=0)]
        lengths = [end - begin for begin, end in pairwise(edges)]
        if root not in (-1, self._transport.rank):
            self.gather(own, (), lengths, root)
            return None
        if targets is not None:
            for target, (dtype, shape) in zip(targets, layouts, strict=True):
                check_fits(target, shape, dtype)
            self.gather(own, targets, lengths, root)
            return targets
        memory = framework.new_bytes(begins[-1])
        self.gather(own, [memory], lengths, root)
        return [
            framework.elements(memory, begin, dtype, shape)
            for begin, (dtype, shape) in zip(begins, layouts, strict=False)
        ]

    def exchange_numbers(
        self,
        numbers: Sequence[Sequence[int]],
        counts: Sequence[int],
        prelude_to: Operation,
    ) -> list[list[int]]:
        """Return the rows of whole numbers of all members.

        Args:
            numbers: This member's rows. All rows of all members have one length.
            counts: How many rows each member has.
            prelude_to: The operation that the numbers describe.
        """
        own = np.array(numbers, np.int64)
        rows = np.empty((sum(counts), own.shape[1]), np.int64)
        lengths = [count * own.shape[1] * own.itemsize for count in counts]
        call = rows_of([own]), rows_of([rows]), lengths
        self._transport.all_gather(*call, name=self._name, prelude_to=prelude_to)
        numbers_of_all: list[list[int]] = rows.tolist()
        return numbers_of_all

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


def headers_in(headers: bytes) -> list[list[int]]:
    """Return the headers that the core has exchanged."""
    numbers: list[list[int]] = (
        np.frombuffer(headers, np.int64).reshape(-1, HEADER).tolist()
    )
    return numbers
