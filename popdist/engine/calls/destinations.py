"""Checks of the arrays that a caller gives for results: `out`."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from popdist.engine.calls.array_rows import LIST_TYPES, NUMPY, Array, written
from popdist.engine.rows import AnyArray
from popdist.engine.spec.dtypes import DType


def check_fits(out: AnyArray, shape: Sequence[int], dtype: DType) -> None:
    """Raise ValueError if a result of this shape and dtype cannot be written to out."""
    if out.shape != tuple(shape) or out.dtype != dtype:
        raise ValueError(
            f"out has {out.dtype} of shape {out.shape}, but the result has {dtype} of "
            f"shape {tuple(shape)}. Give an array like the result, or no out."
        )


def check_apart(out: Sequence[Array]) -> None:
    """Raise ValueError if two arrays that get different results share memory."""
    spans = sorted(
        (*NUMPY.extent_of(array)[:2], index)
        for index, array in enumerate(out)
        if array.size
    )
    for at, (_, end, one) in enumerate(spans):
        for begin, _, other in spans[at + 1 :]:
            if begin >= end:
                break
            if np.shares_memory(out[one], out[other]):
                first, second = sorted((one, other))
                raise ValueError(
                    f"Arrays {first} and {second} of out share memory, but each of "
                    "them gets a different result. Give arrays that do not overlap."
                )


def out_arrays(out: Any, count: int) -> list[Array]:
    """Return the arrays, one for each replica of the group, that `out` stands for."""
    if isinstance(out, LIST_TYPES):
        arrays = [written(array) for array in out]
    else:
        stack = written(out)
        arrays = [stack[i, ...] for i in range(len(stack))] if stack.ndim else []
    if len(arrays) != count:
        raise ValueError(
            f"out has {len(arrays)} entries, but the result has {count}: one for each "
            f"replica of the group. Give a list of {count} arrays, or an array with a "
            f"leading axis of {count}."
        )
    check_apart(arrays)
    return arrays
