"""The memory of eager tensors and arrays: shared, of every dtype, never copied."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from popdist.tensorflow.tensors.memory import (
    memory_of,
    new_memories,
    new_memory,
    tensor_of,
)
from tests.popdist.tensorflow.instances import on_all

DTYPES = [
    *(tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.complex64, tf.bool),
    *(tf.int8, tf.int16, tf.int32, tf.int64),
    *(tf.uint8, tf.uint16, tf.uint32, tf.uint64),
]


def alone(function: Any) -> Any:
    return on_all(1, lambda _: function())[0]


def test_a_tensor_of_every_dtype_is_the_memory_of_the_array_that_it_is_made_of() -> (
    None
):
    def program() -> list[Any]:
        found = []
        for dtype in DTYPES:
            array = new_memory((3,), np.dtype(dtype.as_numpy_dtype))
            array[:] = 0
            tensor = tensor_of(array)
            array[1] = 1
            found.append(
                (tensor.dtype.name, tf.cast(tensor, tf.int32).numpy().tolist())
            )
        return found

    assert alone(program) == [(dtype.name, [0, 1, 0]) for dtype in DTYPES]


def test_the_array_of_a_tensor_is_the_tensors_memory_and_keeps_it() -> None:
    def program() -> tuple[bool, bool, list[float]]:
        tensor = tf.range(1000.0) * 2
        array = memory_of(tensor)
        shares = memory_of(tensor).ctypes.data == array.ctypes.data
        del tensor
        others = [tf.zeros(1000) for _ in range(100)]
        return shares, array.flags.writeable and not others, array[[0, 1, 999]].tolist()

    assert alone(program) == (True, False, [0.0, 2.0, 1998.0])


def test_arrays_in_one_piece_of_memory_are_apart_and_of_their_own_shapes() -> None:
    def program() -> list[Any]:
        layouts = [
            ((2, 3), tf.float32),
            ((), tf.bool),
            ((0,), tf.int64),
            ((5,), tf.half),
        ]
        arrays = new_memories([(s, np.dtype(d.as_numpy_dtype)) for s, d in layouts])
        for number, array in enumerate(arrays):
            array[...] = number
        return [tensor_of(array).numpy().tolist() for array in arrays]

    assert alone(program) == [[[0.0] * 3] * 2, True, [], [3.0] * 5]


def test_strings_are_refused() -> None:
    def program() -> str:
        with pytest.raises(TypeError) as error:
            memory_of(tf.constant("text"))
        return str(error.value)

    assert alone(program) == (
        "The tensor's dtype is string, but popdist exchanges numbers and bools. Encode "
        "it as numbers first, such as tf.io.decode_raw does."
    )


def test_memory_is_used_again_once_no_tensor_refers_to_it() -> None:
    def program() -> list[bool]:
        layouts = [((1000, 1000), np.dtype(np.float32))] * 2
        first = new_memories(layouts)
        begin = first[0].ctypes.data
        tensor = tensor_of(first[1])
        del first
        second = new_memories(layouts)
        apart = second[0].ctypes.data != begin
        tensor_of(second[0])[0, 0].numpy()
        other = second[0].ctypes.data
        del second
        third = new_memories(layouts)
        return [apart, third[0].ctypes.data == other, tensor.shape == (1000, 1000)]

    assert alone(program) == [True, True, True]
