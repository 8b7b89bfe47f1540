"""Several arrays of one call, where results may be written over other arrays."""

from collections.abc import Sequence

import numpy as np

from popdist.engine._core import address_of
from popdist.engine.calls.rows import Array, Prepared, plain, prepare

# An array as its rows, and the rows that its result goes to.
Pair = tuple[Sequence[Array], Sequence[Array]]


def prepare_all(given: Sequence[Pair]) -> list[Prepared]:
    """Prepare arrays for one call.

    Results that would be written over what another array reads or writes go through
    copies: call copy_results() when all of the arrays have been reduced.
    """
    overlapping = _overlapping(given) if len(given) > 1 else set()
    return [
        _through_copies(rows, targets)
        if index in overlapping
        else prepare(rows, targets)
        for index, (rows, targets) in enumerate(given)
    ]


def _through_copies(rows: Sequence[Array], targets: Sequence[Array]) -> Prepared:
    held = tuple(np.empty(target.shape, target.dtype) for target in targets)
    return Prepared(
        tuple(plain(row) for row in rows), held, list(zip(targets, held, strict=True))
    )


def _overlapping(given: Sequence[Pair]) -> set[int]:
    """Return whose results lie where another array is read or written."""
    spans = sorted(
        (*span_of(row), index, written)
        for index, (sources, targets) in enumerate(given)
        for rows, written in ((sources, False), (targets, True))
        for row in rows
        if row.size
    )
    found: set[int] = set()
    touching: set[int] = set()
    writing: set[int] = set()
    reach = 0
    for begin, end, index, written in spans:
        # Where one begins behind all before, nothing that follows touches those.
        if begin >= reach:
            touching, writing = set(), set()
        reach = max(reach, end)
        touching.add(index)
        if written:
            writing.add(index)
        if len(touching) > 1:
            found |= writing
    return found


def span_of(array: Array) -> tuple[int, int]:
    """Return where an array's memory begins and ends."""
    begin = end = address_of(array)
    for length, stride in zip(array.shape, array.strides, strict=True):
        if stride < 0:
            begin += (length - 1) * stride
        else:
            end += (length - 1) * stride
    return begin, end + array.itemsize
