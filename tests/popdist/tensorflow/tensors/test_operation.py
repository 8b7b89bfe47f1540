"""Calls on tensors' memory in eager execution, in tf.function and in sessions."""

import subprocess
import sys
from typing import Any, ClassVar

import numpy as np
import pytest
import tensorflow as tf

from popdist.engine.calls.rows import Array
from popdist.engine.handle import Handle
from popdist.tensorflow.tensors.memory import new_memory
from popdist.tensorflow.tensors.operation import call_by_name, call_in_order
from tests.meeting import wait_until
from tests.popdist.tensorflow.instances import TIMEOUT, on_all

pytestmark = TIMEOUT

THREE = tf.TensorSpec((3,), tf.float32)


def doubled(arrays: list[Array]) -> list[Array]:
    results = [new_memory(array.shape, array.dtype) for array in arrays]
    for array, result in zip(arrays, results, strict=True):
        np.multiply(array, 2, out=result)
    return results


class SlowCall(Handle[Any]):
    """A call that needs one other to have begun before it comes to its end."""

    begun: ClassVar[list["SlowCall"]] = []

    def __init__(self, arrays: list[Array]) -> None:
        self.arrays = arrays
        self.begun.append(self)

    def wait(self) -> list[Array]:
        wait_until(lambda: len(self.begun) > 1)
        return doubled(self.arrays)


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


@pytest.mark.parametrize("mode", ["function", "session"])
def test_named_calls_of_a_graph_wait_beside_each_other_on_one_thread(mode: str) -> None:
    def calls(x: Any) -> Any:
        (a,) = call_by_name(SlowCall, [x], [THREE])
        (b,) = call_by_name(SlowCall, [x + 1], [THREE])
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


class FailingCall:
    """A call that fails when it begins, or when it is waited for."""

    def __init__(self, arrays: list[Array]) -> None:
        if arrays[0][0] == 0:
            raise ValueError("Zero is not valid.")

    def wait(self) -> list[Array]:
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
            (failing,) = call_by_name(FailingCall, [x], [THREE])
            (a,) = call_by_name(SlowCall, [x], [THREE])
            (b,) = call_by_name(SlowCall, [x], [THREE])
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
            return call_by_name(SlowCall, [x], [THREE])

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


@pytest.mark.parametrize(
    "call",
    [
        "call_in_order(lambda arrays: arrays, [x], [tf.TensorSpec((3,))])",
        "reduce_in_graph(print, [[x]], ['/cpu:0'], False)",
    ],
)
def test_a_function_that_xla_compiles_is_refused(call: str) -> None:
    # In a process of its own: with the stand-in for tensorflow.python.ipu, which other
    # tests import, jit_compile is ignored.
    program = f"""
import tensorflow as tf
from popdist.tensorflow.tensors.operation import call_in_order
from popdist.tensorflow.tensors.reduction import reduce_in_graph

@tf.function(jit_compile=True, autograph=False)
def compiled(x):
    return {call}

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

    assert ran.stdout == (
        "XLA compiles this function, and popdist's collectives are no part of what it "
        "compiles. Leave jit_compile out, or set it to False.\n"
    ), ran.stderr
