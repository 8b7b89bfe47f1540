"""The memory of eager tensors as numpy arrays, and of arrays as tensors: no copies."""

from collections.abc import Sequence
from math import prod
from threading import Lock
from typing import Any
from weakref import ref

import numpy as np
from tensorflow.python.eager.context import ensure_initialized
from tensorflow.python.framework.ops import EagerTensor

from popdist.engine.calls.array_rows import Array
from popdist.engine.spec.dtypes import DType

# TensorFlow takes memory that is aligned like this as it is, and copies other memory.
_ALIGNMENT = 64
# The first CPU of this process, whatever its name among several is.
_CPU = ""

# Memory of so many bytes or more is used again once nothing refers to it: the kernel
# takes as long to provide new memory as the engine takes to reduce it.
_REUSED_BYTES = 1 << 18
_MOST_REUSED = 4

Tensor = Any


def memory_of(tensor: Tensor) -> Array:
    """Return an eager tensor's elements where they lie; they must not be written.

    The array keeps the memory as long as it lives.

    Raises:
        TypeError: They are strings or other objects, which are not exchanged.
    """
    # numpy() would copy, and the buffer protocol lacks bfloat16.
    array: Array = np.asarray(tensor._numpy())
    if array.dtype.kind in "OS":
        raise objects_error(tensor)
    return array


def objects_error(tensor: Tensor) -> TypeError:
    """Return the error for a tensor of strings or other objects."""
    return TypeError(
        f"The tensor's dtype is {tensor.dtype.name}, but popdist exchanges numbers "
        "and bools. Encode it as numbers first, such as tf.io.decode_raw does."
    )


def new_memory(shape: Sequence[int], dtype: DType) -> Array:
    """Return a new array that tensor_of() takes without a copy."""
    (array,) = new_memories([(shape, dtype)])
    return array


def new_memories(layouts: Sequence[tuple[Sequence[int], DType]]) -> list[Array]:
    """Return new arrays of these shapes and dtypes, in one piece of memory."""
    sizes = [prod(shape) * dtype.itemsize for shape, dtype in layouts]
    steps = [-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes]
    memory = _MEMORY.take(sum(steps) + _ALIGNMENT)
    begin = -memory.ctypes.data % _ALIGNMENT
    arrays: list[Array] = []
    for (shape, dtype), size, step in zip(layouts, sizes, steps, strict=True):
        arrays.append(memory[begin : begin + size].view(dtype).reshape(shape))
        begin += step
    return arrays


class _UsedMemory:
    """STATE: memory of earlier results, which tensors may still refer to."""

    def __init__(self) -> None:
        # Each piece, and its array, which results keep alive. Their counts of
        # references would differ between versions of Python.
        self._memory: list[tuple[memoryview, ref[Array]]] = []
        self._lock = Lock()

    def take(self, nbytes: int) -> Array:
        """Return memory that nothing else refers to."""
        if nbytes < _REUSED_BYTES:
            return np.empty(nbytes, np.uint8)
        with self._lock:
            for index, (memory, lender) in enumerate(self._memory):
                if memory.nbytes == nbytes and lender() is None:
                    del self._memory[index]
                    break
            else:
                memory = np.empty(nbytes, np.uint8).data
            # A slice of an array refers to this array, as its base is none itself.
            array = np.frombuffer(memory, np.uint8)
            others = self._memory[: _MOST_REUSED - 1]
            self._memory = [(memory, ref(array)), *others]
            return array


_MEMORY = _UsedMemory()


def tensor_of(array: Array) -> Tensor:
    """Return an eager tensor of an array's elements, which then must not be written.

    It is the array's own memory if that is aligned, as new_memory() does.
    """
    ensure_initialized()
    return EagerTensor(array, _CPU, None)
