"""Headers: the descriptions of arrays that members exchange before the arrays."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from popdist.engine.calls.array_rows import Array
from popdist.engine.spec.dtypes import code_of, dtype_of

# Dtype, axes, and their lengths.
_MOST_AXES = 14
HEADER = _MOST_AXES + 2


def header_of(row: Array) -> Array:
    """Return an array's header."""
    return np.array(_numbers_of(row), np.int64)


def headers_of(rows: Sequence[Array]) -> Array:
    """Return the headers of some arrays, one below the other."""
    return np.array([_numbers_of(row) for row in rows], np.int64)


def described(header: Array) -> tuple["np.dtype[Any]", tuple[int, ...]]:
    """Return the dtype and the shape that a header tells of."""
    code, axes, *lengths = header.tolist()
    return dtype_of(code), tuple(lengths[:axes])


def _numbers_of(row: Array) -> list[int]:
    if row.ndim > _MOST_AXES:
        raise ValueError(
            f"The array has {row.ndim} axes, but can have at most {_MOST_AXES} here."
        )
    lengths = [*row.shape, *[0] * (_MOST_AXES - row.ndim)]
    return [code_of(row.dtype), row.ndim, *lengths]
