"""From numpy arrays to the rows that a transport carries."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from popdist.engine._core import address_of
from popdist.engine.spec.dtypes import DTYPES, code_of
from popdist.engine.transport import Rows

# Any, because the engine takes arrays of every dtype it knows.
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Prepared:
    """One array of a call: what is read and written for each local replica."""

    sources: tuple[Array, ...]
    targets: tuple[Array, ...]
    # What has to be copied where once the call is over.
    copies: list[tuple[Array, Array]] = field(default_factory=list)

    def rows(self) -> tuple[Rows, Rows]:
        return rows_of(self.sources), rows_of(self.targets)

    def copy_results(self) -> None:
        for to, source in self.copies:
            to[...] = source


def rows_of(arrays: Sequence[Array]) -> Rows:
    """Return the rows that these arrays are: alike, and each in one piece."""
    first = arrays[0]
    places = tuple([address_of(array) for array in arrays])
    return Rows(places, first.shape, code_of(first.dtype), arrays)


def bytes_of(array: Array) -> Rows:
    """Return the one row that an array is, as bytes."""
    return Rows((address_of(array),), (array.nbytes,), DTYPES["uint8"], array)


def written(x: object, argument: str = "out") -> Array:
    """Return x as it is, if it is an array that results can be written to."""
    if not isinstance(x, np.ndarray):
        raise TypeError(
            f"{argument} is {type(x).__name__}, but a result is written to it. Give a "
            "numpy array."
        )
    if not x.flags.writeable:
        raise ValueError(
            f"{argument} is an array that cannot be written. Give another one, such as "
            "a copy of it."
        )
    return x


def wrong_rows(given: int, replicas: int) -> ValueError:
    """Return the error for an array whose rows are not those of the local replicas."""
    return ValueError(
        f"{given} rows are given, but this instance has {replicas} replicas in the "
        f"group. Give an array with a leading axis of {replicas}, one row for each "
        f"local replica, or a list of {replicas} arrays. popdist.instance_group() "
        "takes arrays as they are, without that axis."
    )


def plain(array: Array) -> Array:
    """Return the array itself if it is in one piece and aligned, else a copy."""
    if array.flags.c_contiguous and array.flags.aligned:
        return array
    copy = np.empty(array.shape, array.dtype)
    copy[...] = array
    return copy


def prepare(sources: Sequence[Array], targets: Sequence[Array]) -> Prepared:
    """Prepare rows to be read and rows to be written, of equal shapes.

    Where a row to be written is in pieces, or shares memory with another one but is
    not that one, the result goes through a copy.
    """
    copies: list[tuple[Array, Array]] = []
    ready = []
    for index, target in enumerate(targets):
        mine = sources[index]
        whole = target.flags.c_contiguous and target.flags.aligned
        shared = any(
            np.may_share_memory(target, other)
            for other in (*sources, *targets[:index])
            if not (other is mine and _same(target, mine))
        )
        if whole and not shared:
            ready.append(target)
            continue
        held = np.empty(target.shape, target.dtype)
        copies.append((target, held))
        ready.append(held)
    return Prepared(tuple(plain(row) for row in sources), tuple(ready), copies)


def _same(one: Array, other: Array) -> bool:
    return address_of(one) == address_of(other) and one.strides == other.strides
