"""The arrays of the bench: their elements, and the expected sums."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# Any, because the bench moves arrays of any dtype.
Array = NDArray[np.generic]

DTYPES = ("float32", "float16", "bfloat16", "float64", "int32", "int64")

# Whole numbers so small that their sum is exact in every measured type and in any
# order. A prime, so that a misplaced share changes the result.
_PERIOD = 13
# float16 is exact up to 2048, and bfloat16 up to 256.
_EXACT = {"float16": 2048, "bfloat16": 256}

# A pass goes through rows that together fit in the caches next to a core. So does an
# array that a program writes just before it reduces it.
_ROWS = 64
_BYTES_OF_ROWS = 64 << 10
_LINE = 64


def most_members(dtypes: Sequence[str]) -> int:
    """Return how many members' sums are exact in all of these dtypes."""
    return min(_EXACT.get(dtype, _EXACT["float16"]) for dtype in dtypes) // _PERIOD


def source(length: int, dtype: str, rank: int) -> Array:
    """Return a member's contribution."""
    return _filled(length, dtype, (np.arange(_PERIOD) + rank) % _PERIOD)


def is_sum(array: Array, members: int, first: int = 0) -> bool:
    """Return whether an array is the sum over all members' arrays, from `first` on."""
    ranks = np.arange(members)[:, np.newaxis]
    one_period = ((np.arange(_PERIOD) + first + ranks) % _PERIOD).sum(axis=0)
    # Step by step: a comparison of the whole would need as much memory again.
    step = _PERIOD << 16
    expected = _filled(min(step, array.size), array.dtype.name, one_period)
    return all(
        np.array_equal(array[at : at + step], expected[: array.size - at])
        for at in range(0, array.size, step)
    )


def rows_of_pass(length: int, dtype: str) -> int:
    """Return how many arrays of this length a pass has; one if they are large."""
    return max(1, min(_ROWS, _BYTES_OF_ROWS // _stride(length, dtype)))


def rows(length: int, dtype: str, count: int) -> list[Array]:
    """Return so many arrays on cache lines of their own."""
    item = np.dtype(dtype).itemsize
    stride = _stride(length, dtype)
    block = np.empty(count * stride + _LINE, np.uint8)
    first = -block.ctypes.data % _LINE
    starts = range(first, first + count * stride, stride)
    return [block[at : at + length * item].view(dtype) for at in starts]


def _stride(length: int, dtype: str) -> int:
    return -(-length * np.dtype(dtype).itemsize // _LINE) * _LINE


def _filled(length: int, dtype: str, period: NDArray[np.int64]) -> Array:
    array: Array = np.empty(length, dtype)
    # Many periods at once: numpy is slow at copying 13 elements a time.
    many = np.tile(period, 512).astype(dtype)
    whole = length // many.size * many.size
    array[:whole].reshape(-1, many.size)[:] = many
    array[whole:] = many[: length - whole]
    return array
