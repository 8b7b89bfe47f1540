"""Host collectives between instances: eagerly, in tf.function and in sessions."""

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

import popdist.tensorflow as pdt
from popdist.engine.spec.dtypes import DTYPES
from tests.popdist.tensorflow.instances import on_all


def in_mode(mode: str, function: Callable[..., Any], *values: Any) -> Any:
    """Return what a function of tensors returns, as lists."""
    if mode == "eager":
        results = function(*map(tf.constant, values))
    elif mode == "function":
        results = tf.function(function)(*map(tf.constant, values))
    else:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            inputs = [
                tf.compat.v1.placeholder(
                    tf.constant(value).dtype, tf.constant(value).shape
                )
                for value in values
            ]
            feeds = dict(zip(inputs, values, strict=True))
            found = session.run(function(*inputs), feeds)
            return tf.nest.map_structure(lambda array: array.tolist(), found)
    return tf.nest.map_structure(lambda tensor: tensor.numpy().tolist(), results)


MODES = ("eager", "function", "session")


def test_all_of_them_in_every_mode() -> None:
    def calls(x: Any) -> Any:
        return (
            pdt.allreduce(x, tf.distribute.ReduceOp.SUM, "sum"),
            pdt.allreduce(x, "MEAN", "mean"),
            pdt.allgather(x, "gathered"),
            pdt.broadcast(x, 1, "from 1"),
        )

    def program(rank: int) -> Any:
        return [in_mode(mode, calls, [1.0 + rank, 2.0]) for mode in MODES]

    expected = ([3, 4], [1.5, 2], [[1, 2], [2, 2]], [2, 2])
    assert on_all(2, program) == [[expected] * 3] * 2


def test_calls_on_captured_tensors_are_matched_by_their_order() -> None:
    """TensorFlow names them by numbers, which other work of an instance changes."""

    def program(rank: int) -> Any:
        for _ in range(rank):
            earlier = tf.constant(1.0)
            tf.function(lambda x=earlier: tf.add(x, 1.0))()
        x = tf.constant([1.0 + rank, 2.0])

        @tf.function
        def calls() -> Any:
            with tf.name_scope("scope"):
                total = pdt.allreduce(x, "SUM")
            inner = tf.function(lambda: pdt.allgather(total + x))
            return total, pdt.allreduce(x, "MEAN"), inner()

        return tf.nest.map_structure(lambda each: each.numpy().tolist(), calls())

    assert on_all(2, program) == [([3, 4], [1.5, 2], [[4, 6], [5, 6]])] * 2


def test_graphs_may_make_their_calls_in_any_order_if_tensors_have_names() -> None:
    def program(rank: int) -> Any:
        def calls(x: Any, y: Any) -> Any:
            names = ["a", "b"] if rank == 0 else ["b", "a"]
            found = {}
            for name in names:
                tensor = x if name == "a" else y
                found[name] = pdt.allreduce(tensor, "SUM", name)
            return found["a"], found["b"]

        return [in_mode(mode, calls, [1.0], [10.0, 20.0]) for mode in MODES[1:]]

    assert on_all(2, program) == [[([2], [20, 40])] * 2] * 2


def test_in_a_graph_the_name_of_the_tensor_is_the_default() -> None:
    def program(rank: int) -> Any:
        def calls(x: Any) -> Any:
            first, second = tf.identity(x, "first"), tf.identity(x + 1, "second")
            if rank == 0:
                return pdt.allgather(first), pdt.allgather(second)
            late = pdt.allgather(second)
            return pdt.allgather(first), late

        return [in_mode(mode, calls, 1 + rank) for mode in MODES[1:]]

    assert on_all(2, program) == [[([1, 2], [2, 3])] * 2] * 2


def test_gradients_are_those_of_all_instances() -> None:
    def program(rank: int) -> Any:
        def calls(x: Any) -> Any:
            with tf.GradientTape(persistent=True) as tape:
                tape.watch(x)
                total = pdt.allreduce(x, "SUM", "sum") * (rank + 1)
                mean = pdt.allreduce(x, "MEAN", "mean") * (rank + 1)
                rows = pdt.allgather(x, "rows") * [[1.0], [10.0]]
                root = pdt.broadcast(x, 1, "root") * (rank + 1)
            return [tape.gradient(y, x) for y in (total, mean, rows, root)]

        return [in_mode(mode, calls, [1.0]) for mode in MODES]

    def expected(rank: int) -> list[Any]:
        return [[3], [1.5], [[2], [20]][rank], [[0], [3]][rank]]

    assert on_all(2, program) == [[expected(0)] * 3, [expected(1)] * 3]


def test_integers_and_halves_are_reduced_and_their_means_too() -> None:
    def program(rank: int) -> Any:
        found = []
        for name in DTYPES:
            if name == "bool":
                continue
            x = tf.cast([3 + 4 * rank], name)
            found.append(
                [pdt.allreduce(x, op).numpy().tolist() for op in ("SUM", "MEAN")]
            )
        flags = pdt.broadcast(tf.constant([rank == 0, True]))
        return found, flags.numpy().tolist()

    expected = [[[10], [5]]] * (len(DTYPES) - 1)
    assert on_all(2, program) == [(expected, [True, True])] * 2


CALLS = {
    "allreduce": lambda x: pdt.allreduce(x, "SUM", "x"),
    "allgather": lambda x: pdt.allgather(x, "x"),
    "broadcast": lambda x: pdt.broadcast(x, 0, "x"),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("call", CALLS)
def test_other_layouts_are_an_error_on_all_instances_which_go_on(
    call: str, mode: str
) -> None:
    def program(rank: int) -> tuple[str, Any]:
        with pytest.raises(tf.errors.UnknownError) as error:
            in_mode(mode, CALLS[call], [1.0] * (1 + rank))
        found = in_mode(mode, lambda x: pdt.allreduce(x, "SUM", "x"), [1.0, 2.0])
        return str(error.value), found

    for text, found in on_all(2, program):
        assert "Tensor layouts did not match on all instances" in text
        assert found == [2.0, 4.0]


def test_another_operation_is_refused() -> None:
    with pytest.raises(ValueError, match="Unsupported reduce op: MAX"):
        pdt.allreduce([1.0], "MAX")


def test_means_of_16_bits_do_not_overflow() -> None:
    def program(rank: int) -> Any:
        value = tf.constant([40000.0, 2.0 + rank], tf.float16)
        mean = pdt.allreduce(value, "MEAN", "mean")
        return mean.dtype.name, mean.numpy().tolist()

    assert on_all(2, program) == [("float16", [40000.0, 2.5])] * 2


def test_bools_have_no_mean() -> None:
    with pytest.raises(TypeError, match=r"Bools have no mean\. Cast them to numbers"):
        pdt.allreduce(tf.constant([True]), "MEAN")


def test_calls_of_one_graph_on_one_tensor_have_names_of_their_own() -> None:
    def program(rank: int) -> Any:
        def calls(x: Any) -> Any:
            first, second = pdt.allreduce(x, "SUM"), pdt.allreduce(x, "MEAN")
            return first, second, tf.gradients(first + 10 * second, x)[0]

        return in_mode("session", calls, [1.0 + rank, 2.0])

    assert on_all(2, program) == [([3, 4], [1.5, 2], [12, 12])] * 2
