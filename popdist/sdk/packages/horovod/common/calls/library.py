"""Functions of a framework's tensors for calls: a TensorLibrary, here numpy's."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from popdist.engine.calls.array_rows import NUMPY, Array
from popdist.engine.rows import Framework
from popdist.engine.spec.dtypes import DType


class TensorLibrary(NamedTuple):
    """Functions of a framework's tensors.

    Any stands for a tensor: numpy's and torch's have the same attributes (shape,
    nbytes, itemsize) and slices, but no common type.

    framework: The functions that the engine uses.
    check: Raises TypeError or ValueError unless it is given tensors only.
    name_of: Returns the name of a tensor's dtype.
    new: Returns a tensor of a shape, of the dtype that another one has.
    new_like: Returns new tensors of the shapes and dtypes of others.
    scale: Multiplies a tensor, and writes the result to another one. Integers are
        multiplied as float64, and the result is truncated.
    divide: Divides integers in place, and truncates.
    doubles: Returns a tensor as float64.
    int32: Returns a tensor of these whole numbers.
    """

    framework: Framework[Any]
    check: Callable[[Sequence[Any]], None]
    name_of: Callable[[Any], str]
    new: Callable[[Sequence[int], Any], Any]
    new_like: Callable[[Sequence[Any]], list[Any]]
    scale: Callable[[Any, float, Any], None]
    divide: Callable[[Any, int], None]
    doubles: Callable[[Any], Any]
    int32: Callable[[Sequence[int]], Any]


def _check_arrays(arrays: Sequence[object]) -> None:
    for array in arrays:
        if not isinstance(array, np.ndarray):
            raise TypeError(
                f"A {type(array).__name__} is given, but an array is expected."
            )


@cache
def _name_of_dtype(dtype: DType) -> str:
    # numpy makes it anew each time, in 10 us.
    return dtype.name


def _scale_array(source: Array, factor: float, target: Array) -> None:
    if source.dtype.kind in "iub":
        target[...] = (source.astype(np.float64) * factor).astype(target.dtype)
    else:
        # torch, too, multiplies 16-bit numbers in float32, and rounds once.
        exact = np.float64 if source.dtype == np.float64 else np.float32
        np.multiply(source, exact(factor), out=target, casting="unsafe")


def _divide_array(target: Array, divisor: int) -> None:
    # numpy rounds down.
    rounded_up = (target < 0) & (target % divisor != 0)
    target //= divisor
    target += rounded_up


NUMPY_ARRAYS = TensorLibrary(
    framework=NUMPY,
    check=_check_arrays,
    name_of=lambda array: _name_of_dtype(array.dtype),
    new=lambda shape, like: np.empty(tuple(shape), like.dtype),
    new_like=lambda arrays: [np.empty(each.shape, each.dtype) for each in arrays],
    scale=_scale_array,
    divide=_divide_array,
    doubles=lambda array: array.astype(np.float64),
    int32=lambda numbers: np.array(numbers, np.int32),
)
