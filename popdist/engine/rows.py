"""Rows of memory: where they lie, which of them overlap, and where a call writes.

The arrays of a framework become rows by means of what its `Framework` knows of them:
see calls.rows for numpy, and popdist.torch.tensors.tensor_rows for torch.
"""

from collections.abc import Callable, Sequence
from itertools import zip_longest
from math import prod
from typing import Generic, NamedTuple, Protocol, TypeVar

from popdist.engine.spec.dtypes import DTYPES, item_bytes_of, name_of

BYTES = DTYPES["uint8"]


class Rows:
    """One array of a call: where its rows lie, one for each local replica or one.

    A value: nothing changes it. It is not a dataclass, because a frozen one takes as
    long to make as the rest of a small call.
    """

    __slots__ = ("addresses", "count", "dtype", "nbytes", "owner", "shape")

    def __init__(
        self,
        addresses: tuple[int, ...],
        shape: tuple[int, ...],
        dtype: int,
        owner: object = None,
    ) -> None:
        """Describe rows in memory.

        Args:
            addresses: Where each row begins, aligned to its elements. A row is in one
                piece.
            shape: The shape of a row.
            dtype: The code of its elements' type; see spec.dtypes.DTYPES.
            owner: Anything that keeps the memory alive as long as it is referred to.
        """
        size = item_bytes_of(dtype)
        count = prod(shape)
        for address in addresses:
            # Memory of an array without elements may lie anywhere.
            if address % size and count:
                raise ValueError(
                    f"A row of {name_of(dtype)} begins at address {address:#x}, "
                    f"but must begin at a multiple of {size}. Copy it first."
                )
        self.addresses = addresses
        self.shape = shape
        self.dtype = dtype
        self.owner = owner
        # How many elements and bytes a row has.
        self.count = count
        self.nbytes = count * size

    def __repr__(self) -> str:
        kind = f"{name_of(self.dtype)} of shape {self.shape}"
        return f"<Rows: {len(self.addresses)} of {kind}>"

    @property
    def address(self) -> int:
        """Where the only row begins.

        Raises:
            ValueError: There are several rows, or none.
        """
        if len(self.addresses) != 1:
            raise ValueError(
                f"The array has {len(self.addresses)} rows, but this operation takes "
                "an array of one."
            )
        return self.addresses[0]


# The rows of an array that a call reads, and those that it writes the result to.
Pair = tuple[Rows, Rows]


class Extent(NamedTuple):
    """Where the memory of an array begins and ends: the same if it has no elements."""

    begin: int
    end: int
    # Whether it is a row: aligned, and its elements lie there in their order.
    is_row: bool

    def overlaps(self, other: "Extent") -> bool:
        return self.begin < other.end and other.begin < self.end


class AnyArray(Protocol):
    """An array of whatever framework."""

    @property
    def nbytes(self) -> int: ...


A = TypeVar("A", bound=AnyArray)


class Framework(NamedTuple, Generic[A]):
    """What must be known of a framework's arrays to read and write them as rows.

    extent_of: Returns where an array lies.
    shape_and_code: Returns the shape of an array, as members must agree on it, and the
        code of its dtype.
    readable: Returns an array itself if it is a row, else a copy that is one.
    new_bytes: Returns a new array of so many bytes.
    copy_bytes: Copies bytes, from one of them on, to the elements of an array.
    """

    extent_of: Callable[[A], Extent]
    shape_and_code: Callable[[A], tuple[tuple[int, ...], int]]
    readable: Callable[[A], A]
    new_bytes: Callable[[int], A]
    copy_bytes: Callable[[A, int, A], None]


class Destination(Generic[A]):
    """Arrays that a transport writes as one row, from the first one to the last.

    It writes to them directly, or to scratch memory: see destination_of().
    """

    def __init__(
        self, framework: Framework[A], arrays: Sequence[A], address: int, direct: bool
    ) -> None:
        self._framework = framework
        self._arrays = arrays
        self._scratch: A | None = None
        self.address = address
        if not direct:
            self._scratch = framework.new_bytes(self._nbytes())
            self.address = framework.extent_of(self._scratch).begin

    @property
    def is_direct(self) -> bool:
        """Whether the transport writes to the arrays themselves."""
        return self._scratch is None

    def row(self, dtype: int = BYTES) -> Rows:
        """Return the row that the transport writes, in elements of this dtype."""
        count = self._nbytes() // item_bytes_of(dtype)
        return Rows((self.address,), (count,), dtype, (self._arrays, self._scratch))

    def finish(self) -> None:
        """Copy what has gone to scratch memory to the arrays."""
        if self._scratch is None:
            return
        begin = 0
        for array in self._arrays:
            self._framework.copy_bytes(self._scratch, begin, array)
            begin += array.nbytes

    def _nbytes(self) -> int:
        return sum([array.nbytes for array in self._arrays])


def destination_of(
    framework: Framework[A],
    arrays: Sequence[A],
    read: Sequence[A] = (),
    *,
    own_begin: int | None = None,
) -> Destination[A]:
    """Return where a transport writes one row, the elements of these arrays.

    That is the arrays themselves where they lie in one piece, and scratch memory where
    they do not, or where the transport would overwrite what the call still reads.

    Args:
        read: What the call reads.
        own_begin: From which byte of the row on the call writes what it reads as it is:
            there the two may be the same memory.
    """
    extents = [framework.extent_of(array) for array in arrays]
    # Memory of an array without elements may lie anywhere.
    filled = [extent for extent in extents if extent.end > extent.begin]
    begin = (filled or extents)[0].begin
    own = None if own_begin is None else begin + own_begin
    direct = _are_in_one_piece(filled) and not _overlap(
        [framework.extent_of(array) for array in read], filled, own
    )
    return Destination(framework, arrays, begin, direct)


class Replacement(Generic[A]):
    """One array of a reduction: the rows that are read, and those that are written."""

    def __init__(self, source: Rows, targets: Sequence[Destination[A]]) -> None:
        self.source = source
        self.targets = targets

    def rows(self) -> Pair:
        addresses = tuple([target.address for target in self.targets])
        source = self.source
        return source, Rows(addresses, source.shape, source.dtype, self.targets)

    def finish(self) -> None:
        """Copy the results that have gone to scratch memory."""
        for target in self.targets:
            target.finish()


def replacements_of(
    framework: Framework[A], arrays: Sequence[tuple[Sequence[A], Sequence[A]]]
) -> list[Replacement[A]]:
    """Prepare a call that reads and writes the rows of several arrays.

    Results that would be written over another row that is read or written go through
    scratch memory: call finish() for each array when the call is over.

    Args:
        arrays: Of each the rows that are read, and those that are written.
    """
    extent_of = framework.extent_of
    sources = [[framework.readable(row) for row in rows] for rows, _ in arrays]
    read = [[extent_of(row) for row in rows] for rows in sources]
    written = [[extent_of(row) for row in rows] for _, rows in arrays]
    overlapping = find_overlapping(read, written)
    replacements = []
    for index, (_, targets) in enumerate(arrays):
        addresses = tuple([extent.begin for extent in read[index]])
        shape, dtype = framework.shape_and_code(sources[index][0])
        source = Rows(addresses, shape, dtype, sources[index])
        direct = index not in overlapping
        destinations = [
            Destination(framework, [row], extent.begin, direct and extent.is_row)
            for row, extent in zip(targets, written[index], strict=True)
        ]
        replacements.append(Replacement(source, destinations))
    return replacements


def find_overlapping(
    read: Sequence[Sequence[Extent]], written: Sequence[Sequence[Extent]]
) -> set[int]:
    """Return which arrays have results where another row is read or written.

    Each array has the memory of its rows that are read, and of those that are written.
    A result may replace just the row of its own number.
    """
    if len(read) == 1 and len(read[0]) == len(written[0]) == 1:
        # Most calls: the rest would take longer than all else of them.
        (source,), (target,) = read[0], written[0]
        return {0} if source != target and source.overlaps(target) else set()
    extents: list[tuple[int, int, int, bool]] = []
    for index, (sources, targets) in enumerate(zip(read, written, strict=True)):
        extents += [(row.begin, row.end, index, True) for row in targets]
        for row, target in zip_longest(sources, targets):
            if row is not None and (target is None or row[:2] != target[:2]):
                extents.append((row.begin, row.end, index, False))
    overlapping: set[int] = set()
    results: set[int] = set()
    count = reach = 0
    for begin, end, index, is_written in sorted(extents):
        if begin == end:
            continue
        # Where one begins behind all before, nothing that follows overlaps those.
        if begin >= reach:
            results, count = set(), 0
        reach = max(reach, end)
        count += 1
        if is_written:
            results.add(index)
        if count > 1:
            overlapping |= results
            results.clear()
    return overlapping


def _are_in_one_piece(extents: Sequence[Extent]) -> bool:
    """Return whether extents are rows that follow each other without gaps."""
    end = extents[0].begin if extents else 0
    for extent in extents:
        if not extent.is_row or extent.begin != end:
            return False
        end = extent.end
    return True


def _overlap(
    read: Sequence[Extent], written: Sequence[Extent], own: int | None
) -> bool:
    """Return whether what is read, unless it begins at `own`, is written over."""
    for extent in read:
        for other in written:
            if extent.overlaps(other) and extent.begin != own:
                return True
    return False
