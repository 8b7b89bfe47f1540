"""From numpy arrays to the rows that a transport carries."""

import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from popdist.engine._core import address_of
from popdist.engine.spec.dtypes import DTYPES, code_of
from popdist.engine.transport import Rows

# Any, because the engine takes arrays of every dtype it knows.
Array = np.ndarray[Any, np.dtype[Any]]


class ReplicaRows(np.ndarray[Any, Any]):
    """An array that the caller has marked: each of its rows is a local replica's array.

    What arithmetic makes of it, or an index selects, is an ordinary array again. Copies
    and other views, such as x.copy() and x.T, are marked too.
    """

    def __getitem__(self, key: Any) -> Any:
        return self.view(np.ndarray)[key]

    def __array_wrap__(
        self, array: Any, context: Any = None, return_scalar: bool = False
    ) -> Any:
        return array[()] if array.ndim == 0 else np.asarray(array)


# What calls take as they are, without converting it first.
ARRAY_TYPES = {np.ndarray, ReplicaRows}


def is_first_of_several(rank: int, counts: Sequence[int]) -> bool:
    """Return whether this member is the first with several rows.

    Only there are rows worth a warning, and one member's is enough.
    """
    return rank == next((at for at, rows in enumerate(counts) if rows > 1), None)


def warn_of_unmarked_rows(x: Array, replicas: int) -> None:
    """Warn, at the caller's own line, that the rows of x are taken for replicas."""
    level, frame = 1, sys._getframe(0)
    while frame.f_back and frame.f_globals.get("__name__", "").startswith("popdist."):
        level, frame = level + 1, frame.f_back
    warnings.warn(
        f"An array of shape {x.shape} is given to a group of replicas, of which this "
        f"instance has {replicas}: its rows are taken for their arrays, one for each. "
        "If so, write popdist.rows(x) in place of x, or give a list of "
        f"{replicas} arrays. If all of x is one array of this instance, use "
        "popdist.instance_group() in place of popdist.replica_group().",
        stacklevel=level,
    )


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
        f"group. Give popdist.rows(x), where x has a leading axis of {replicas}, one "
        f"row for each local replica, or a list of {replicas} arrays. "
        "popdist.instance_group() takes arrays as they are, without that axis."
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
