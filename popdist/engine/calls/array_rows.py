"""From numpy arrays to the rows that a transport carries."""

import sys
import warnings
from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from popdist.engine._core import address_of
from popdist.engine.rows import BYTES, Extent, Framework, Rows
from popdist.engine.spec.dtypes import DType, code_of, dtype_of

# Any, because the engine takes arrays of every dtype it knows.
Array = np.ndarray[Any, np.dtype[Any]]


class ReplicaRows(np.ndarray[Any, Any]):
    """An array that the caller has marked: each of its rows is a local replica's array.

    The results of arithmetic and of indexing are ordinary arrays again. Copies and
    other views, such as x.copy() and x.T, are marked too.
    """

    def __getitem__(self, key: Any) -> Any:
        return self.view(np.ndarray)[key]

    def __array_wrap__(
        self, array: Any, context: Any = None, return_scalar: bool = False
    ) -> Any:
        return array[()] if array.ndim == 0 else np.asarray(array)


# Calls take arrays of these types without converting them first.
ARRAY_TYPES = {np.ndarray, ReplicaRows}
# Types that stand for several arrays. A tuple, because isinstance() would make the
# union `list | tuple` anew in each call.
LIST_TYPES = (list, tuple)


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


def rows_of(arrays: Sequence[Array]) -> Rows:
    """Return the rows of these arrays, which are alike and contiguous."""
    first = arrays[0]
    places = tuple([address_of(array) for array in arrays])
    return Rows(places, first.shape, code_of(first.dtype), arrays)


def _row_of(array: Array) -> Rows:
    return Rows((address_of(array),), array.shape, code_of(array.dtype), array)


def bytes_of(array: Array) -> Rows:
    """Return the one row that an array is, as bytes."""
    return Rows((address_of(array),), (array.nbytes,), BYTES, array)


def written(x: object, argument: str = "out") -> Array:
    """Return x as it is, if it is an array that results can be written to."""
    if not isinstance(x, np.ndarray):
        raise TypeError(
            f"{argument} is {type(x).__name__}, but a result is written to it. Give a "
            "numpy array."
        )
    if not x.flags.writeable:
        raise ValueError(
            f"{argument} is not a writable array. Give a writable one, such as a copy "
            "of it."
        )
    return x


def wrong_rows(given: int, replicas: int) -> ValueError:
    """Return the error for an array that lacks one row for each local replica."""
    return ValueError(
        f"{given} rows are given, but this instance has {replicas} replicas in the "
        f"group. Give popdist.rows(x), where x has a leading axis of {replicas}, one "
        f"row for each local replica, or a list of {replicas} arrays. "
        "popdist.instance_group() takes arrays as they are, without that axis."
    )


def readable(array: Array) -> Array:
    """Return the array if it is contiguous and aligned, else a copy that is."""
    if array.flags.c_contiguous and array.flags.aligned:
        return array
    copy = np.empty(array.shape, array.dtype)
    copy[...] = array
    return copy


def _extent_of(array: Array) -> Extent:
    begin = end = address_of(array)
    flags = array.flags
    is_row = flags.c_contiguous and flags.aligned
    if is_row or not array.size:
        return begin, begin + array.nbytes, is_row
    for length, stride in zip(array.shape, array.strides, strict=True):
        if stride < 0:
            begin += (length - 1) * stride
        else:
            end += (length - 1) * stride
    return begin, end + array.itemsize, is_row


def _elements(memory: Array, begin: int, dtype: DType, shape: Sequence[int]) -> Array:
    array = memory[begin : begin + prod(shape) * dtype.itemsize]
    if begin % dtype.itemsize:
        array = array.copy()
    return array.view(dtype).reshape(shape)


def _copy(source: Array, target: Array) -> None:
    target[...] = source


NUMPY: Framework[Array] = Framework(
    address_of=address_of,
    extent_of=_extent_of,
    shape_and_code=lambda array: (array.shape, code_of(array.dtype)),
    exchanged_row=_row_of,
    readable=readable,
    new_bytes=partial(np.empty, dtype=np.uint8),
    empty_like=lambda array: np.empty(array.shape, array.dtype),
    elements=_elements,
    copy=_copy,
    number_of_dtype=code_of,
    dtype_of_number=dtype_of,
)
