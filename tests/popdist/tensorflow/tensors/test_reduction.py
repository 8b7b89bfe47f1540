"""Reductions by popdist's own operations, in tf.functions."""

import ctypes
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from popdist.tensorflow.tensors import registration
from popdist.tensorflow.tensors.reduction import reduce_in_graph
from tests.popdist.tensorflow.instances import on_all

FIRST = "/device:CPU:0"


def alone(function: Callable[[], Any], devices: int = 1) -> Any:
    """Return what a function returns in a process with so many logical CPUs."""

    def program(_: int) -> Any:
        cpu = tf.config.list_physical_devices("CPU")[0]
        logical = [tf.config.LogicalDeviceConfiguration()] * devices
        tf.config.set_logical_device_configuration(cpu, logical)
        return function()

    return on_all(1, program)[0]


def memory(address: int, shape: tuple[int, ...]) -> Any:
    """Return the float32 elements that lie there."""
    count = int(np.prod(shape))
    kind = ctypes.c_float * count
    return np.frombuffer(kind.from_address(address), np.float32).reshape(shape)


def arrays_in(table: bytes, rows: int) -> list[tuple[list[Any], Any]]:
    """Return the rows and the result of each array of a table."""
    numbers = np.frombuffer(table, np.uint64).tolist()
    arrays = []
    while numbers:
        axes, numbers = numbers[0], numbers[1:]
        shape = tuple(numbers[:axes])
        places = numbers[axes : axes + rows + 1]
        numbers = numbers[axes + rows + 1 :]
        if 0 in shape:
            continue
        *sources, result = (memory(place, shape) for place in places)
        arrays.append((sources, result))
    return arrays


def add(rows: int) -> Callable[[bytes], None]:
    """Return what writes ten times the sum of an array's rows to its result."""

    def reduce(table: bytes) -> None:
        for sources, result in arrays_in(table, rows):
            result[...] = 10 * sum(source.copy() for source in sources)

    return reduce


def reduced(*tensors: Any) -> list[Any]:
    """Return the tensors of one device, each ten times itself."""
    values = [[tensor] for tensor in tensors]
    return [total for (total,) in reduce_in_graph(add(1), values, [FIRST], True)]


def test_results_have_the_shapes_and_places_of_their_tensors() -> None:
    def program() -> Any:
        @tf.function
        def step(x: Any) -> Any:
            results = reduced(x + 1, tf.reduce_sum(x), tf.zeros((0, 3)))
            assert [each.shape for each in results] == [(2, 2), (), (0, 3)]
            return results

        return [each.numpy().tolist() for each in step(tf.ones((2, 2)))]

    assert alone(program) == [[[20, 20], [20, 20]], 40, []]


def test_what_something_else_needs_is_not_overwritten() -> None:
    def program() -> Any:
        variable = tf.Variable([1.0, 2.0])
        constant = tf.constant([3.0, 4.0])

        @tf.function
        def step(x: Any) -> Any:
            needed = x * 2
            inner = tf.constant([5.0, 6.0])
            part = tf.reshape(needed, (2, 1))
            results = reduced(
                x, variable.read_value(), constant, needed, needed, part, inner
            )
            return [*map(tf.squeeze, results), x, needed, inner, variable.read_value()]

        x = tf.constant([7.0, 8.0])
        for _ in range(2):
            values = [each.numpy().tolist() for each in step(x)]
        kept = [each.numpy().tolist() for each in (x, variable, constant)]
        return values, kept

    values, kept = alone(program)

    doubled = [14, 16]
    assert values[:7] == [
        *([70, 80], [10, 20], [30, 40], [140, 160], [140, 160], [140, 160], [50, 60])
    ]
    assert values[7:] == [[7, 8], doubled, [5, 6], [1, 2]]
    assert kept == [[7, 8], [1, 2], [3, 4]]


def test_memory_that_nothing_else_needs_is_the_results() -> None:
    def program() -> Any:
        same = []

        def reduce(table: bytes) -> None:
            numbers = np.frombuffer(table, np.uint64)
            same.append(numbers[2] == numbers[3])

        @tf.function
        def step(x: Any) -> Any:
            return reduce_in_graph(reduce, [[x * 2]], [FIRST], True)

        step(tf.ones(100))
        return [bool(each) for each in same]

    assert alone(program) == [True]


def test_tensors_of_each_dtype_have_a_table() -> None:
    def program() -> Any:
        shapes = []

        def copy(*tables: bytes) -> None:
            for table in tables:
                numbers = np.frombuffer(table, np.uint64).tolist()
                shapes.append([])
                while numbers:
                    axes, *numbers = numbers
                    shapes[-1].append(numbers[:axes])
                    source, result = numbers[axes : axes + 2]
                    # The elements of all tables have four bytes.
                    ctypes.memmove(result, source, 4 * math.prod(numbers[:axes]))
                    numbers = numbers[axes + 2 :]

        @tf.function
        def step(*tensors: Any) -> Any:
            results = reduce_in_graph(copy, [[each] for each in tensors], [FIRST], True)
            return [result for (result,) in results]

        tensors = [
            tf.constant([1.5, 2.5]),
            tf.constant([[7], [8]]),
            tf.constant([1 + 2j, 3 - 4j, 5], tf.complex64),
            tf.constant(3.5),
            tf.constant(9),
        ]
        return shapes, [each.numpy().tolist() for each in step(*tensors)]

    shapes, results = alone(program)

    assert shapes == [[[2], []], [[2, 1], []], [[3, 2]]]
    assert results == [[1.5, 2.5], [[7], [8]], [1 + 2j, 3 - 4j, 5], 3.5, 9]


def test_calls_are_made_in_the_order_in_which_they_are_traced() -> None:
    def program() -> list[str]:
        names = []

        def call(x: Any, name: str) -> Any:
            def reduce(table: bytes) -> None:
                names.append(name)
                add(1)(table)

            return reduce_in_graph(reduce, [[x]], [FIRST], True)[0][0]

        @tf.function
        def step(x: Any) -> Any:
            late = x
            for _ in tf.range(1000):
                late += 1
            call(late, "waits for its tensor")
            tf.cond(x[0] > 0, lambda: call(x, "in a branch"), lambda: x)
            for _ in tf.range(2):
                x = call(x, "in a loop")
            call(tf.zeros(3), "needs nothing")
            return x

        result = step(tf.ones(3))
        assert result.numpy().tolist() == [100, 100, 100]
        return names

    assert alone(program) == [
        "waits for its tensor",
        "in a branch",
        "in a loop",
        "in a loop",
        "needs nothing",
    ]


@pytest.mark.parametrize("spread", [True, False])
def test_several_devices_share_a_result(spread: bool) -> None:
    def program() -> Any:
        devices = [f"/device:CPU:{n}" for n in range(3)]

        @tf.function
        def step(x: Any) -> Any:
            values = []
            for size in (2, 1):
                value = []
                for number, device in enumerate(devices, 1):
                    with tf.device(device):
                        value.append(x[:size] * 10**number)
                values.append(value)
            results = reduce_in_graph(add(3), values, devices, spread)
            return [[each + 1 for each in copies] for copies in results]

        found = [step(tf.constant([1.0, 2.0])) for _ in range(2)][1]
        return [[each.numpy().tolist() for each in copies] for copies in found]

    copies = 3 if spread else 1
    assert alone(program, 3) == [[[11101, 22201]] * copies, [[11101]] * copies]


def test_devices_must_have_tensors_of_one_shape() -> None:
    def program() -> str:
        devices = ["/device:CPU:0", "/device:CPU:1"]

        @tf.function
        def step(x: Any, y: Any) -> Any:
            return reduce_in_graph(add(2), [[x, y]], devices, True)

        with pytest.raises(tf.errors.InvalidArgumentError) as error:
            step(tf.ones(3), tf.ones(4))
        return str(error.value)

    assert "The local replicas' tensors differ in their shapes" in alone(program, 2)


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (ValueError("why"), "InvalidArgumentError"),
        (NotImplementedError("why"), "UnimplementedError"),
        (MemoryError("why"), "ResourceExhaustedError"),
        (RuntimeError("why\0not"), "UnknownError"),
        (KeyboardInterrupt("why"), "UnknownError"),
        (tf.errors.AbortedError(None, None, "why"), "AbortedError"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_an_error_of_python_is_the_operations(
    raised: BaseException, expected: str
) -> None:
    def program() -> Any:
        def fail(_: bytes) -> None:
            raise raised

        @tf.function
        def step(x: Any) -> Any:
            return reduce_in_graph(fail, [[x]], [FIRST], True)

        with pytest.raises(tf.errors.OpError) as error:
            step(tf.ones(3))
        # The next call may succeed.
        again = tf.function(lambda x: reduced(x))(tf.ones(1))
        return type(error.value).__name__, str(error.value), float(again[0][0])

    name, text, again = alone(program)

    assert name == expected
    assert f"{type(raised).__name__}: why" in text
    assert again == 10


def test_a_copy_of_a_bundle_is_refused() -> None:
    def program() -> str:
        @tf.function
        def step(x: Any) -> Any:
            (bundle,) = registration.add_operation("PopdistPack", tensors=[x])
            copy = tf.concat([bundle[:1], bundle[1:]], 0)
            return registration.add_operation("PopdistUnpack", bundle=copy, T=[x.dtype])

        with pytest.raises(tf.errors.InternalError) as error:
            step(tf.ones(3))
        return str(error.value)

    assert "An operation has copied a bundle of popdist's tensors" in alone(program)
