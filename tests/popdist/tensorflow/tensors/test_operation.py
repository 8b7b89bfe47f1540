"""Calls on tensors' memory in eager execution, in tf.function and in sessions."""

import subprocess
import sys
import weakref
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from popdist.engine.calls.array_rows import Array
from popdist.tensorflow.tensors.memory import memory_of, new_memory
from popdist.tensorflow.tensors.operation import (
    call_by_name,
    call_in_order,
    unique_name,
)
from tests.meeting import wait_until
from tests.popdist.tensorflow.instances import on_all

THREE = tf.TensorSpec((3,), tf.float32)


def doubled(arrays: list[Array]) -> list[Array]:
    results = [new_memory(array.shape, array.dtype) for array in arrays]
    for array, result in zip(arrays, results, strict=True):
        np.multiply(array, 2, out=result)
    return results


BEGUN: list[list[Array]] = []


def slowly_doubled(arrays: list[Array]) -> list[Array]:
    """Double arrays, once another call has begun."""
    BEGUN.append(arrays)
    wait_until(lambda: len(BEGUN) > 1)
    return doubled(arrays)


def alone(function: Any) -> Any:
    return on_all(1, lambda _: function())[0]


def test_a_call_gets_the_tensors_and_returns_new_ones() -> None:
    def call(x: Any) -> list[Any]:
        return call_in_order(doubled, [x, x + 1], [THREE, THREE])

    def program() -> list[Any]:
        x = tf.constant([1.0, 2.0, 3.0])
        eagerly, traced = call(x), tf.function(call)(x)
        assert [t.shape for t in traced] == [(3,), (3,)]
        return [[t.numpy().tolist() for t in ts] for ts in (eagerly, traced)]

    assert alone(program) == [[[2, 4, 6], [4, 6, 8]]] * 2


def test_a_function_makes_its_calls_in_the_order_in_which_it_is_traced() -> None:
    def program() -> list[str]:
        made = []

        def call(x: Any, name: str) -> Any:
            def function(arrays: list[Array]) -> list[Array]:
                made.append(name)
                return doubled(arrays)

            return call_in_order(function, [x], [THREE])[0]

        @tf.function
        def step(x: Any) -> Any:
            late = x
            for _ in tf.range(1000):
                late += 1
            call(late, "waits for its tensor")
            tf.cond(x[0] > 0, lambda: call(x, "in a branch"), lambda: x)
            for _ in tf.range(2):
                x = call(x, "in a loop")
            call(x, "unused")
            return x

        step(tf.ones(3))
        return made

    assert alone(program) == [
        "waits for its tensor",
        "in a branch",
        "in a loop",
        "in a loop",
        "unused",
    ]


def test_a_function_takes_and_returns_every_dtype_and_shape_as_it_is() -> None:
    def program() -> list[Any]:
        tensors = [
            tf.constant([1.5, -2], tf.bfloat16),
            tf.constant([[1 + 2j]], tf.complex64),
            tf.constant(True),
            tf.constant([[2**63]], tf.uint64),
            tf.zeros((0, 3), tf.int8),
            tf.constant(0.5, tf.float16),
        ]
        seen = []

        def function(arrays: list[Array]) -> list[Array]:
            seen.extend((array.dtype.name, array.shape) for array in arrays)
            # Each second result is not in one piece.
            copies = [np.array(array) for array in arrays]
            return [np.stack([copy, copy], -1)[..., 0] for copy in copies]

        specs = [tf.TensorSpec(None, tensor.dtype) for tensor in tensors]

        @tf.function(input_signature=specs)
        def step(*given: Any) -> Any:
            return call_in_order(function, given, specs)

        results = step(*tensors)
        operations = step.get_concrete_function().graph.get_operations()
        kinds = {operation.type for operation in operations}
        same = [
            bool(tf.reduce_all(result == tensor)) and result.dtype == tensor.dtype
            for result, tensor in zip(results, tensors, strict=True)
        ]
        return [seen, same, "PopdistCall" in kinds, "PyFunc" in kinds]

    assert alone(program) == [
        [
            ("bfloat16", (2,)),
            ("complex64", (1, 1)),
            ("bool", ()),
            ("uint64", (1, 1)),
            ("int8", (0, 3)),
            ("float16", ()),
        ],
        [True] * 6,
        True,
        False,
    ]


def test_tensors_are_the_memory_of_arrays_for_as_long_as_they_are_used() -> None:
    def program() -> list[Any]:
        given: list[Any] = []
        made: list[Any] = []
        ended: list[str] = []

        def function(arrays: list[Array]) -> list[Array]:
            given.extend(arrays)
            result = new_memory((1000,), np.dtype(np.float32))
            result[...] = 7
            made.append(result.ctypes.data)
            weakref.finalize(result, ended.append, "an array")
            return [result]

        @tf.function
        def step(x: Any) -> Any:
            spec = tf.TensorSpec((1000,), tf.float32)
            return call_in_order(function, [x * 2], [spec])[0]

        result = step(tf.ones(1000))
        found: list[Any] = [memory_of(result).ctypes.data == made[0], *ended]
        # Nothing in TensorFlow needs what the function was given.
        found.append(given[0].tolist() == [2] * 1000)
        with pytest.raises(ValueError, match="read-only"):
            given[0][0] = 1
        found.append(result.numpy().tolist() == [7] * 1000)
        del result
        step(tf.ones(1000))
        return [*found, ended]

    assert alone(program) == [True, True, True, ["an array"]]


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ([np.zeros(3)], "TypeError: A result is of float64, but must be float32."),
        ([], "ValueError: zip() argument 2 is longer than argument 1"),
    ],
)
def test_results_must_be_those_that_were_described(
    results: list[Array], expected: str
) -> None:
    def program() -> str:
        @tf.function
        def step(x: Any) -> Any:
            return call_in_order(lambda _: results, [x], [THREE])

        with pytest.raises(tf.errors.InvalidArgumentError) as error:
            step(tf.ones(3))
        return str(error.value)

    assert expected in alone(program)


@pytest.mark.parametrize("mode", ["function", "session"])
def test_named_calls_of_a_graph_wait_beside_each_other_on_one_thread(mode: str) -> None:
    def calls(x: Any) -> Any:
        (a,) = call_by_name(slowly_doubled, [x], [THREE])
        (b,) = call_by_name(slowly_doubled, [x + 1], [THREE])
        return a + b

    def program() -> list[float]:
        tf.config.threading.set_inter_op_parallelism_threads(1)
        if mode == "function":
            return tf.function(calls)(tf.ones(3)).numpy().tolist()
        options = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=1)
        with tf.Graph().as_default(), tf.compat.v1.Session(config=options) as session:
            x = tf.compat.v1.placeholder(tf.float32, (3,))
            return session.run(calls(x), {x: [1, 1, 1]}).tolist()

    assert alone(program) == [6, 6, 6]


def fail(arrays: list[Array]) -> list[Array]:
    if arrays[0][0] == 0:
        raise ValueError("Zero is not valid.")
    raise tf.errors.AbortedError(None, None, "It has ended.")


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (0.0, tf.errors.InvalidArgumentError, "ValueError: Zero is not valid."),
        (1.0, tf.errors.AbortedError, "AbortedError: It has ended."),
    ],
)
def test_a_named_call_of_a_graph_fails_with_the_status_of_its_error(
    value: float, kind: type[Exception], text: str
) -> None:
    def program() -> tuple[str, list[float]]:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            x = tf.compat.v1.placeholder(tf.float32, (3,))
            (failing,) = call_by_name(fail, [x], [THREE])
            (a,) = call_by_name(slowly_doubled, [x], [THREE])
            (b,) = call_by_name(slowly_doubled, [x], [THREE])
            with pytest.raises(kind) as caught:
                session.run(failing + 1, {x: [value] * 3})
            # The graph can go on with its other calls.
            return str(caught.value), session.run(a + b, {x: [1, 2, 3]}).tolist()

    message, after = alone(program)
    assert text in message
    assert after == [4, 8, 12]


def test_strings_are_refused_while_a_graph_is_built() -> None:
    def program() -> list[str]:
        def in_order(x: Any) -> Any:
            return call_in_order(lambda arrays: arrays, [x], [THREE])

        def by_name(x: Any) -> Any:
            return call_by_name(slowly_doubled, [x], [THREE])

        texts = []
        for call in in_order, by_name:
            with pytest.raises(TypeError) as caught:
                tf.function(call).get_concrete_function(tf.TensorSpec(3, tf.string))
            texts.append(str(caught.value))
        return texts

    for text in alone(program):
        assert text.endswith(
            "TypeError: The tensor's dtype is string, but popdist exchanges numbers "
            "and bools. Encode it as numbers first, such as tf.io.decode_raw does.\n"
        )


def test_a_function_that_xla_compiles_is_refused() -> None:
    # In a process of its own: with the stand-in for tensorflow.python.ipu, which other
    # tests import, jit_compile is ignored.
    program = """
import tensorflow as tf
from popdist.tensorflow.tensors.operation import call_in_order
from popdist.tensorflow.tensors.reduction import reduce_in_graph

for call in (
    lambda x: call_in_order(lambda arrays: arrays, [x], [tf.TensorSpec((3,))]),
    lambda x: reduce_in_graph(print, [[x]], ["/cpu:0"], False),
):
    compiled = tf.function(call, jit_compile=True, autograph=False)
    try:
        compiled(tf.ones(3))
    except NotImplementedError as error:
        print(error)
"""
    ran = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )

    assert (
        ran.stdout
        == (
            "XLA compiles this function, but cannot compile popdist's collectives. "
            "Leave out jit_compile, or set it to False.\n"
        )
        * 2
    ), ran.stderr


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("function", ["call", "call_1"] * 2),
        ("session", ["call", "call_1", "call_2", "call_3"]),
    ],
)
def test_functions_of_a_sessions_graph_which_may_run_at_once_share_no_names(
    mode: str, expected: list[str]
) -> None:
    names: list[str] = []

    def body(x: Any) -> Any:
        names.extend([unique_name("call"), unique_name("call")])
        return x

    def trace() -> None:
        for _ in range(2):
            tf.function(body, autograph=False)(tf.constant(1.0))

    if mode == "function":
        trace()
    else:
        with tf.Graph().as_default():
            trace()
    assert names == expected
