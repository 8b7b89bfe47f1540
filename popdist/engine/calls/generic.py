"""The operations on arrays of any framework, whose arguments have been checked.

Each function carries out a call of a transport: it describes the arrays as rows, and
copies the results that have gone to scratch memory. `name` is the number of the call's
name.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import prod
from typing import Any

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
from popdist.engine.spec.operations import Operation
from popdist.engine.transport import Transport

# A header describes an array to the other members: the number of its dtype, its number
# of axes, and their lengths.
_MOST_AXES = 14
HEADER = _MOST_AXES + 2


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


def broadcast(
    transport: Transport,
    framework: Framework[A],
    source: A | None,
    targets: Sequence[A],
    root: int,
    name: int,
) -> None:
    """Overwrite the targets with member `root`'s source, which is None elsewhere."""
    row = framework.readable(targets[0] if source is None else source)
    transport.broadcast(framework.exchanged_row(row), root, name=name)
    # The first target may be memory of the source, so the others are its copies.
    for target in targets:
        if row is not target:
            framework.copy(row, target)
            row = target


def gather(
    transport: Transport,
    framework: Framework[A],
    own: A,
    targets: Sequence[A],
    lengths: Sequence[int],
    root: int,
    name: int,
) -> None:
    """Gather the bytes of all members' arrays in the targets, one after the other.

    Args:
        targets: The arrays that get the result; none where it is not wanted.
        lengths: How many bytes each member has.
        root: The member that gets the result; -1 for all.
    """
    source = row_of(framework, own)
    # This member's part of the result may be where its own array lies already.
    target, copies = destination_of(
        framework,
        targets or [framework.new_bytes(0)],
        source,
        own_begin=sum(lengths[: transport.rank]),
    )
    if root < 0:
        transport.all_gather(source, target, lengths, name=name)
    else:
        transport.gather(source, target, lengths, root, name=name)
    copy_results(framework, copies)


def exchange_numbers(
    transport: Transport,
    numbers: Sequence[Sequence[int]],
    counts: Sequence[int],
    prelude_to: Operation,
    name: int,
) -> list[list[int]]:
    """Return the rows of whole numbers of all members.

    Args:
        numbers: This member's rows. All rows of all members have one length.
        counts: How many rows each member has.
        prelude_to: The operation that the numbers describe.
    """
    own = np.array(numbers, np.int64)
    length = own.shape[1]
    rows = np.empty((sum(counts), length), np.int64)
    lengths = [count * length * rows.itemsize for count in counts]
    call = rows_of([own]), rows_of([rows]), lengths
    transport.all_gather(*call, name=name, prelude_to=prelude_to)
    numbers_of_all: list[list[int]] = rows.tolist()
    return numbers_of_all


def headers_in(headers: bytes) -> list[list[int]]:
    """Return the headers that the core has exchanged."""
    numbers: list[list[int]] = (
        np.frombuffer(headers, np.int64).reshape(-1, HEADER).tolist()
    )
    return numbers


def gather_described(
    transport: Transport,
    framework: Framework[A],
    own: A,
    headers: Sequence[Sequence[int]],
    counts: Sequence[int],
    targets: Sequence[A] | None,
    root: int,
    name: int,
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
    layouts = [described(framework, header) for header in headers]
    sizes = [prod(shape) * dtype.itemsize for dtype, shape in layouts]
    begins = list(accumulate(sizes, initial=0))
    edges = [begins[array] for array in accumulate(counts, initial=0)]
    lengths = [end - begin for begin, end in pairwise(edges)]
    if root not in (-1, transport.rank):
        gather(transport, framework, own, (), lengths, root, name)
        return None
    if targets is not None:
        for target, (dtype, shape) in zip(targets, layouts, strict=True):
            check_fits(target, shape, dtype)
        gather(transport, framework, own, targets, lengths, root, name)
        return targets
    memory = framework.new_bytes(begins[-1])
    gather(transport, framework, own, [memory], lengths, root, name)
    return [
        framework.elements(memory, begin, dtype, shape)
        for begin, (dtype, shape) in zip(begins, layouts, strict=False)
    ]


def scatter(
    transport: Transport,
    framework: Framework[A],
    source: A | None,
    targets: Sequence[A],
    lengths: Sequence[int],
    root: int,
    name: int,
    dtype: int = BYTES,
) -> None:
    """Give each member its share of member `root`'s source, which is None elsewhere.

    Args:
        lengths: How many bytes each member gets.
        dtype: The code of the elements.
    """
    read = None if source is None else row_of(framework, source, dtype)
    target, copies = destination_of(framework, targets, read, dtype)
    transport.scatter(read or target, target, lengths, root, name=name)
    copy_results(framework, copies)


def all_to_all(
    transport: Transport,
    framework: Framework[A],
    source: Rows,
    targets: Sequence[A],
    name: int,
) -> None:
    """Exchange equal shares: the source's leading axis has one for each member."""
    target, copies = destination_of(framework, targets, source, source.dtype)
    transport.all_to_all(source, target, name=name)
    copy_results(framework, copies)


def reduce(
    transport: Transport,
    framework: Framework[A],
    rows: Sequence[A],
    target: A | None,
    reduction: int,
    root: int,
    name: int,
) -> A | None:
    """Reduce the rows of all members, and return the result on member `root`.

    Args:
        target: The array for the result; None to make a new one.
    """
    is_root = transport.rank == root
    if target is None or not is_root:
        target = framework.empty_like(rows[0])
    (pair,), copies = pairs_of(framework, [(rows, [target])])
    transport.reduce(*pair, reduction, root, name=name)
    copy_results(framework, copies)
    return target if is_root else None


def reduce_scatter(
    transport: Transport,
    framework: Framework[A],
    rows: Sequence[A],
    targets: Sequence[A],
    reduction: int,
    name: int,
) -> None:
    """Reduce the rows of all members, and write this member's shares to the targets."""
    source = readable_rows(framework, rows)
    target, copies = destination_of(framework, targets, source, source.dtype)
    transport.reduce_scatter(source, target, reduction, name=name)
    copy_results(framework, copies)


def all_reduce(
    transport: Transport,
    framework: Framework[A],
    arrays: Sequence[tuple[Sequence[A], Sequence[A]]],
    reduction: int,
    algorithm: int,
    name: int,
) -> None:
    """Reduce arrays of any dtypes, with one call for all that have the same.

    Args:
        arrays: For each array, the rows to read and the rows to write.
    """
    pairs, copies = pairs_of(framework, arrays)
    batches: dict[int, list[Pair]] = {}
    for pair in pairs:
        batches.setdefault(pair[0].dtype, []).append(pair)
    for batch in batches.values():
        transport.all_reduce(batch, reduction, algorithm=algorithm, name=name)
    copy_results(framework, copies)
