"""Rows of memory: their addresses, their overlaps, and the targets of a call.

The functions of a `Framework` turn its arrays into rows: see calls.array_rows for
numpy, and popdist.torch.tensor_rows for torch.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate, zip_longest
from math import prod
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

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
            addresses: Where each row begins, aligned to its elements. A row is
                contiguous.
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
        self.check_single()
        return self.addresses[0]

    def check_single(self) -> None:
        """Raise ValueError if there are several rows, or none."""
        if len(self.addresses) != 1:
            raise ValueError(
                f"The array has {len(self.addresses)} rows, but this operation takes "
                "an array of one."
            )


# An array's rows that a call reads, and the rows for its result.
Pair = tuple[Rows, Rows]

# Where the memory of an array begins and ends (the same if it has no elements), and
# whether it is a row: aligned, and its elements lie there in their order. Calls make
# one or two for each array; a named tuple takes far longer to make.
Extent = tuple[int, int, bool]


class AnyArray(Protocol):
    """An array of any framework. Any, because each has its own types of these."""

    @property
    def nbytes(self) -> int: ...
    @property
    def dtype(self) -> Any: ...
    @property
    def shape(self) -> Any: ...


A = TypeVar("A", bound=AnyArray)


class Framework(NamedTuple, Generic[A]):
    """Functions that read, write and make arrays of a framework.

    address_of: Returns where the first element of an array lies.
    extent_of: Returns where an array lies.
    shape_and_code: Returns the shape of an array, as members must agree on it in a
        reduction, and the code of its dtype.
    exchanged_row: Returns the row of an array that is one, as members must agree on it
        when they exchange it.
    readable: Returns an array itself if it is a row, else a copy that is one.
    new_bytes: Returns a new array of so many bytes.
    empty_like: Returns a new array with the dtype and shape of another one.
    elements: Returns bytes, from one of them on, as an array of this dtype and shape,
        which is a copy if they are not aligned.
    copy: Copies the elements of an array to another one.
    number_of_dtype: Returns the number of a dtype, which is the same on all members.
    dtype_of_number: Returns the dtype with this number.
    """

    address_of: Callable[[A], int]
    extent_of: Callable[[A], Extent]
    shape_and_code: Callable[[A], tuple[tuple[int, ...], int]]
    exchanged_row: Callable[[A], Rows]
    readable: Callable[[A], A]
    new_bytes: Callable[[int], A]
    empty_like: Callable[[A], A]
    elements: Callable[[A, int, Any, Sequence[int]], A]
    copy: Callable[[A, A], None]
    number_of_dtype: Callable[[Any], int]
    dtype_of_number: Callable[[int], Any]

    def copy_bytes(self, memory: A, begin: int, array: A) -> None:
        """Copy bytes, from one of them on, to the elements of an array."""
        self.copy(self.elements(memory, begin, array.dtype, array.shape), array)


def row_of(framework: Framework[A], array: A, dtype: int = BYTES) -> Rows:
    """Return the elements of an array, or of a copy that is a row, as one row.

    Args:
        dtype: The code of the type of the row's elements.
    """
    row = framework.readable(array)
    count = row.nbytes // item_bytes_of(dtype)
    return Rows((framework.address_of(row),), (count,), dtype, row)


def shares_of(framework: Framework[A], array: A, count: int) -> Rows:
    """Return the bytes of an array, or of a copy that is a row, as equal shares."""
    row = framework.readable(array)
    shape = count, row.nbytes // count
    return Rows((framework.address_of(row),), shape, BYTES, row)


def readable_rows(framework: Framework[A], arrays: Sequence[A]) -> Rows:
    """Return arrays, or copies that are rows, as the rows of one call."""
    rows = [framework.readable(array) for array in arrays]
    addresses = tuple([framework.address_of(row) for row in rows])
    shape, dtype = framework.shape_and_code(rows[0])
    return Rows(addresses, shape, dtype, rows)


# A copy to make at the end of a call: the scratch memory, the offset of its first byte
# to copy, and the array to fill.
Copy = tuple[A, int, A]


def copy_results(framework: Framework[A], copies: Sequence[Copy[A]]) -> None:
    """Copy the results that have gone to scratch memory: the call is over."""
    for scratch, begin, array in copies:
        framework.copy_bytes(scratch, begin, array)


def destination_of(
    framework: Framework[A],
    arrays: Sequence[A],
    read: Rows | None = None,
    dtype: int = BYTES,
    *,
    own_begin: int | None = None,
) -> tuple[Rows, Sequence[Copy[A]]]:
    """Return the one row to which a transport writes the elements of these arrays.

    The row is the arrays' own memory if that is contiguous. It is scratch memory if
    they do not, or if the transport would overwrite memory that the call still reads.

    Args:
        read: The rows that the call reads.
        dtype: The code of the type of the row's elements.
        own_begin: The byte of the row from which on the call writes its own source
            unchanged: source and target may be the same memory there.

    Returns:
        The row, and the copies for copy_results().
    """
    item_bytes = item_bytes_of(dtype)
    memory = _contiguous([framework.extent_of(array) for array in arrays])
    if memory is not None:
        begin, end = memory
        own = None if own_begin is None else begin + own_begin
        if read is None or not _is_written_over(read, begin, end, own):
            return Rows((begin,), ((end - begin) // item_bytes,), dtype, arrays), ()
    begins = list(accumulate([array.nbytes for array in arrays], initial=0))
    nbytes = begins.pop()
    scratch = framework.new_bytes(nbytes)
    row = Rows(
        (framework.address_of(scratch),), (nbytes // item_bytes,), dtype, scratch
    )
    return row, [
        (scratch, begin, array) for begin, array in zip(begins, arrays, strict=True)
    ]


def pairs_of(
    framework: Framework[A], arrays: Sequence[tuple[Sequence[A], Sequence[A]]]
) -> tuple[list[Pair], Sequence[Copy[A]]]:
    """Return the rows of several arrays for a call to read and to write.

    A result goes through scratch memory if it would overwrite another row of the call.

    Args:
        arrays: For each array, the rows to read and the rows to write.

    Returns:
        A pair for each array, and the copies for copy_results().
    """
    extent_of = framework.extent_of
    sources, read, written = [], [], []
    for rows, targets in arrays:
        extents = [extent_of(row) for row in rows]
        written.append(extents if targets is rows else [extent_of(y) for y in targets])
        if False in [is_row for _, _, is_row in extents]:
            rows = [framework.readable(row) for row in rows]
            extents = [extent_of(row) for row in rows]
        read.append(extents)
        addresses = tuple([begin for begin, _, _ in extents])
        shape, dtype = framework.shape_and_code(rows[0])
        sources.append(Rows(addresses, shape, dtype, rows))
    overlapping = find_overlapping(read, written)
    pairs: list[Pair] = []
    copies: list[Copy[A]] = []
    for index, source in enumerate(sources):
        if written[index] is read[index] and index not in overlapping:
            # In place: the very rows that are read.
            pairs.append((source, source))
            continue
        places = []
        targets = arrays[index][1]
        for target, (begin, _, is_row) in zip(targets, written[index], strict=True):
            if not is_row or index in overlapping:
                scratch = framework.new_bytes(source.nbytes)
                begin = framework.address_of(scratch)
                copies.append((scratch, 0, target))
            places.append(begin)
        owner = targets, copies
        pairs.append((source, Rows(tuple(places), source.shape, source.dtype, owner)))
    return pairs, copies


def find_overlapping(
    read: Sequence[Sequence[Extent]], written: Sequence[Sequence[Extent]]
) -> set[int]:
    """Return the indices of arrays with results that overlap another row of the call.

    Args:
        read: The memory of each array's rows that the call reads.
        written: The memory of each array's results. A result may replace just the row
            with its own number.
    """
    if len(read) == 1 and len(read[0]) == len(written[0]) == 1:
        # Most calls: the rest would take longer than all else of them.
        (source,), (target,) = read[0], written[0]
        is_apart = source[0] >= target[1] or target[0] >= source[1]
        return set() if is_apart or source == target else {0}
    extents: list[tuple[int, int, int, bool]] = []
    for index, (sources, targets) in enumerate(zip(read, written, strict=True)):
        extents += [(begin, end, index, True) for begin, end, _ in targets]
        for row, target in zip_longest(sources, targets):
            if row is not None and (target is None or row[:2] != target[:2]):
                extents.append((row[0], row[1], index, False))
    overlapping: set[int] = set()
    results: set[int] = set()
    count = reach = 0
    for begin, end, index, is_written in sorted(extents):
        if begin == end:
            continue
        # No later extent overlaps the earlier ones if this one begins after them all.
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


def _contiguous(extents: Sequence[Extent]) -> tuple[int, int] | None:
    """Return the begin and end of extents, if they are rows without gaps."""
    begin = end = extents[0][0]
    for row_begin, row_end, is_row in extents:
        # Memory of an array without elements may lie anywhere.
        if row_begin == row_end:
            continue
        if begin == end:
            begin = end = row_begin
        if not is_row or row_begin != end:
            return None
        end = row_end
    return begin, end


def _is_written_over(read: Rows, begin: int, end: int, own: int | None) -> bool:
    """Return whether memory overlaps rows, unless they begin at `own`."""
    for address in read.addresses:
        if begin < address + read.nbytes and address < end and address != own:
            return True
    return False
