"""TensorFlow operations that hand tensors' memory to a Python function."""

from collections.abc import Callable
from typing import Any

# As KERNELS_VERSION in popdist.tensorflow.tensors.
VERSION: int

# Raises LookupError where the TensorFlow with the library of this path lacks a
# function, and RuntimeError where it refuses the operations.
#
# `carry_out` gets the key of an operation, and its arguments: of a PopdistReduce the
# tables of its tensors, of a PopdistCall a pair for each of its tensors, a buffer and
# the shape. It returns the code and the text of a status, and results: of a
# PopdistReduce none, of a PopdistCall for each an object that has its elements, their
# address and length in bytes, the number of TensorFlow's dtype, and the shape.
def register_operations(
    path: str,
    carry_out: Callable[[int, tuple[Any, ...]], tuple[int, str, tuple[Any, ...]]],
    /,
) -> None: ...
