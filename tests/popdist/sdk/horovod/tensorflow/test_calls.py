"""Horovod's calls on TensorFlow's tensors: eagerly, in tf.function and in sessions."""

import os
import pickle
import re
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from popdist.negotiation.agreement import Decision
from popdist.negotiation.call_requests import Kind, Request
from popdist.session import STATE
from tests.popdist.engine.members import error_of
from tests.popdist.sdk.horovod.tensorflow.ranks import hvd, results
from tests.popdist.tensorflow.instances import ends_of

INTEGERS = [tf.uint8, tf.int8, tf.int16, tf.int32, tf.int64, tf.uint16, tf.uint32]
FLOATS = [tf.float16, tf.bfloat16, tf.float32, tf.float64]


def plain(values: Any) -> Any:
    return tf.nest.map_structure(lambda value: value.numpy().tolist(), values)


def test_allreduce_of_every_dtype_by_every_operation() -> None:
    def rank(me: int) -> list[Any]:
        wrong = []
        for dtype in [*INTEGERS, *FLOATS]:
            x = tf.cast([1 + me, 4 - me, 3], dtype)
            expected = {
                hvd.Sum: [3, 7, 6],
                hvd.Min: [1, 3, 3],
                hvd.Max: [2, 4, 3],
                hvd.Product: [2, 12, 9],
                hvd.Average: [1.5, 3.5, 3] if dtype.is_floating else [1, 3, 3],
            }
            for op, result in expected.items():
                found = hvd.allreduce(x, op=op)
                if found.dtype != dtype or found.numpy().tolist() != result:
                    wrong.append((dtype.name, op.name, found.numpy().tolist()))
        flag = hvd.allreduce(tf.constant(me == 1), op=hvd.Sum)
        return [wrong, plain(flag), hvd.allreduce(tf.zeros((0, 3))).shape.as_list()]

    assert results(2, rank) == [[[], True, [0, 3]]] * 2


def test_averages_of_negative_integers_are_truncated_and_factors_scale() -> None:
    def rank(me: int) -> list[Any]:
        below, x = tf.constant([-3 if me else 0, 7]), tf.constant([3, 5]) + me
        half = tf.cast(x, tf.bfloat16)
        return plain(
            [
                hvd.allreduce(below),
                hvd.allreduce(below, average=False),
                # In float64, truncated: [1, 2] + [2, 3].
                hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5),
                hvd.allreduce(x, op=hvd.Sum, postscale_factor=0.5),
                hvd.allreduce(half, prescale_factor=0.5, postscale_factor=4),
            ]
        )

    assert results(2, rank) == [[[-1, 7], [-3, 14], [3, 5], [3, 5], [7, 11]]] * 2


def make_all_calls(x: Any, me: int) -> list[Any]:
    rows, sent = hvd.alltoall(x, [1, 2] if me else [2, 0])
    return [
        hvd.allreduce(x),
        hvd.allreduce(x, op=hvd.Sum, compression=hvd.Compression.fp16, name="sum"),
        *hvd.grouped_allreduce([x, tf.cast(x, tf.int32)], op=hvd.Max),
        hvd.allgather(x[: me + 1]),
        *hvd.grouped_allgather([x[:me], x[:1]]),
        hvd.broadcast(x, 1),
        rows,
        sent,
        hvd.reducescatter(x, op=hvd.Sum),
        *hvd.grouped_reducescatter([x[:2], x]),
    ]


def expected_of_all_calls(me: int) -> list[Any]:
    return [
        [1.5, 3.0, 4.5],
        [3, 6, 9],
        [2, 4, 6],
        [2, 4, 6],
        [1, 2, 4],
        [2],
        [1, 2],
        [2, 4, 6],
        [[1, 2, 2], [4, 6]][me],
        [[2, 1], [0, 2]][me],
        [[3, 6], [9]][me],
        [[1.5], [3]][me],
        [[1.5, 3], [4.5]][me],
    ]


def test_calls_are_made_eagerly_and_in_the_order_of_a_function() -> None:
    def rank(me: int) -> list[Any]:
        x = tf.constant([1.0, 2, 3]) * (me + 1)
        traced = tf.function(lambda x: make_all_calls(x, me))
        return [plain(make_all_calls(x, me)), plain(traced(x))]

    for me, found in enumerate(results(2, rank)):
        assert found == [expected_of_all_calls(me)] * 2


def test_calls_on_captured_tensors_are_matched_by_their_order() -> None:
    """TensorFlow names them by numbers, which other work of a rank changes."""

    def rank(me: int) -> list[Any]:
        for _ in range(me):
            earlier = tf.constant(1.0)
            tf.function(lambda x=earlier: tf.add(x, 1.0))()
        x, y = tf.constant([1.0 + me, 2.0]), tf.constant([1, me])

        @tf.function
        def calls() -> list[Any]:
            branch = tf.cond(y[0] > 0, lambda: hvd.allgather(x), lambda: x)
            return [hvd.allreduce(x), hvd.allreduce(y, op=hvd.Sum), branch]

        return plain(calls())

    assert results(2, rank) == [[[1.5, 2], [2, 1], [1, 2, 2, 2]]] * 2


def test_calls_of_a_sessions_graph_may_be_made_in_any_order() -> None:
    def rank(me: int) -> list[Any]:
        with tf.Graph().as_default():
            x = tf.compat.v1.placeholder(tf.float32, [3])
            calls = make_all_calls(x, me)
            one, other = hvd.allreduce(x, name="one"), hvd.allreduce(-x, name="other")
            # Each rank begins with another one, in a session of a single thread.
            first, second = [(one, other), (other, one)][me]
            with tf.control_dependencies([hvd.mpi_ops.barrier()]):
                last = second + first
            one_thread = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=1)
            with tf.compat.v1.Session(config=one_thread) as session:
                fed = {x: [1.0 + me, 2 + 2 * me, 3 + 3 * me]}
                values = session.run([*calls, last], fed)
                assert session.run(hvd.join()) in (0, 1)
        return [value.tolist() for value in values]

    for me, found in enumerate(results(2, rank)):
        assert found == [*expected_of_all_calls(me), [0, 0, 0]]


def test_slices_are_gathered_and_divided_for_an_average() -> None:
    def rank(me: int) -> list[Any]:
        slices = tf.IndexedSlices(
            tf.ones((1, 2)) * (me + 1), tf.constant([me]), tf.constant([4, 2])
        )
        average, dense = hvd.grouped_allreduce([slices, tf.constant([me])])
        total = hvd.allreduce(slices, op=hvd.Sum)
        refusal = error_of(lambda: hvd.allreduce(slices, op=hvd.Max))
        return [
            plain([average.values, average.indices, dense, total.values]),
            plain(tf.convert_to_tensor(total)),
            refusal[0],
        ]

    assert (
        results(2, rank)
        == [
            [
                [[[0.5, 0.5], [1, 1]], [0, 1], [0], [[1, 1], [2, 2]]],
                [[1, 1], [2, 2], [0, 0], [0, 0]],
                "NotImplementedError",
            ]
        ]
        * 2
    )


def test_gradients_flow_through_calls_eagerly_in_functions_and_in_sessions() -> None:
    def rank(me: int) -> list[Any]:
        calls = [
            hvd.allreduce,
            lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5),
            hvd.allgather,
            lambda x: hvd.broadcast(x, 1),
            lambda x: hvd.alltoall(x, [1, 1])[0],
            lambda x: hvd.reducescatter(x, op=hvd.Sum),
        ]

        def gradient(x: Any) -> Any:
            found = []
            for call in calls:
                with tf.GradientTape() as tape:
                    tape.watch(x)
                    loss = tf.reduce_sum(call(x) * (me + 1.0))
                found.append(tape.gradient(loss, x))
            return found

        def in_session() -> list[Any]:
            with tf.Graph().as_default(), tf.compat.v1.Session() as session:
                found = gradient(tf.constant([1.0, 2.0, 3.0]))
                # One after the other: a call that only one rank makes would be alone.
                return [session.run(each).tolist() for each in found]

        def of_minimum(x: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = hvd.allreduce(x, op=hvd.Min)
            return tape.gradient(y, x)

        x = tf.constant([1.0, 2.0, 3.0])
        refusal = error_of(lambda: of_minimum(x))
        found = [plain(gradient(x)), plain(tf.function(gradient)(x)), in_session()]
        return [*found, refusal]

    for me, found in enumerate(results(2, rank)):
        gradients = [
            [1.5] * 3,
            [1.5] * 3,
            [1.5] * 3,
            [1.5 * me] * 3,
            # Rank 0 weighs the rows that it gets by one, and the last row went nowhere.
            [1, 2, 0],
            [2, 2, 4],
        ]
        refusal = (
            "RuntimeError",
            "allreduce with op=Min has no gradient. Use Sum or Average where one is "
            "needed, or give tf.stop_gradient(tensor).",
        )
        assert found == [*[gradients] * 3, refusal]


def test_a_gradient_of_another_dtype_goes_back_to_where_rows_came_from() -> None:
    """TensorFlow takes float32 as the gradient of a result of float64."""

    def rank(me: int) -> list[Any]:
        def gradient() -> Any:
            x = tf.constant([1.0, 2, 3], tf.float64)
            with tf.GradientTape() as tape:
                tape.watch(x)
                y, _ = hvd.alltoall(x, [1, 1])
            return tape.gradient(y, x, tf.ones(2) * (me + 1))

        return [plain(gradient()), plain(tf.function(gradient)())]

    # The last row went nowhere.
    assert results(2, rank) == [[[1, 2, 0]] * 2] * 2


def test_process_sets_and_joined_ranks_take_part_as_for_torch() -> None:
    def rank(me: int) -> list[Any]:
        pair = hvd.add_process_set(hvd.ProcessSet([0, 2]))
        found: list[Any] = [plain(hvd.size_op(pair.process_set_id))]
        if pair.included():
            found.append(plain(hvd.allgather(tf.constant([me]), process_set=pair)))
        found.append(plain(hvd.process_set_included_op(pair.process_set_id)))
        if me != 1:
            found.append(plain(hvd.allreduce(tf.constant([3.0, 6]), name="late")))
        found.append(int(hvd.join()) < 3)
        return found

    def with_dynamic_sets(me: int) -> list[Any]:
        os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1"
        hvd.shutdown()
        hvd.init()
        return rank(me)

    inside = [2, [0, 2], 1, [2.0, 4.0], True]
    assert results(3, with_dynamic_sets) == [inside, [2, 0, True], inside]


def test_ranks_that_trace_a_call_meet_those_that_do_not() -> None:
    def rank(me: int) -> list[Any]:
        hvd.init()

        def call(x: Any, y: Any) -> Any:
            return hvd.grouped_allreduce([x, y], op=hvd.Sum, name="both")

        function = call if me else tf.function(call)
        found = function(tf.ones((2, 1)) + me, tf.zeros((0, 3)))
        if me == 0:
            # Rank 1 has joined.
            found += function(tf.ones((2, 1)), tf.zeros((0, 3)))
        hvd.join()
        return plain(found)

    assert results(2, rank) == [[[[3], [3]], [], [[1], [1]], []], [[[3], [3]], []]]


def test_traced_calls_may_have_several_dtypes_and_unknown_shapes() -> None:
    def rank(me: int) -> list[Any]:
        hvd.init()

        def call(x: Any, n: Any, y: Any) -> Any:
            return hvd.grouped_allreduce([x, n, y], op=hvd.Sum, name="three")

        specs = [
            tf.TensorSpec((None, 1), tf.float32),
            tf.TensorSpec(None, tf.int64),
            tf.TensorSpec((), tf.float32),
        ]
        traced = tf.function(call, input_signature=specs)
        graph = traced.get_concrete_function().graph
        kinds = {operation.type for operation in graph.get_operations()}
        found: list[Any] = ["PopdistReduce" in kinds, "PyFunc" in kinds]
        for length in (2, 3):
            tensors = (
                tf.ones((length, 1)) + me,
                tf.range(length, dtype=tf.int64),
                tf.constant(0.5),
            )
            found.append(plain(traced(*tensors)))
            # The other rank does not trace it.
            found.append(plain((traced if me else call)(*tensors)))
        return found

    first = [[[3], [3]], [0, 2], 1]
    second = [[[3], [3], [3]], [0, 2, 4], 1]
    assert results(2, rank) == [[True, False, first, first, second, second]] * 2


def test_calls_of_one_round_are_carried_out_together() -> None:
    """Whether tables are among them or not."""

    def rank(me: int) -> list[Any]:
        from horovod.common.calls.carrier import Carrier, TableCall, TensorCall
        from horovod.common.calls.library import NUMPY_ARRAYS

        group = STATE.group("test", (0, 1))
        x, y = np.full(3, 1.0 + me, np.float32), np.full(2, 10.0 + me, np.float32)
        layouts = [(("float32", each.shape),) for each in (x, y)]
        first, second = (
            Request(Kind.ALLREDUCE, name, layout, int(hvd.Sum))
            for name, layout in zip("xy", layouts, strict=True)
        )
        table = np.array([1, 3, x.ctypes.data, x.ctypes.data], np.uint64).tobytes()
        tables = {"float32": table}
        calls = TableCall(first, tables), TensorCall(NUMPY_ARRAYS, second, [y], [y])
        decisions = [Decision(each.name, (each, each)) for each in (first, second)]
        Carrier(group)(list(zip(decisions, calls, strict=True)))
        return [x.tolist(), y.tolist()]

    assert results(2, rank) == [[[3, 3, 3], [21, 21]]] * 2


def test_calls_that_differ_raise_an_error_on_all_ranks() -> None:
    def rank(me: int) -> list[Any]:
        x, y = tf.ones(2 + me), tf.ones(2, [tf.int32, tf.float32][me])
        traced = tf.function(lambda x: hvd.allreduce(x, name="traced"))
        name, text = error_of(lambda: traced(x))
        in_graphs = name, *re.findall("MismatchedCallError: (.*)", text)[:1]
        return [
            error_of(lambda: hvd.allreduce(x, name="shape")),
            error_of(lambda: hvd.allreduce(y, name="dtype")),
            error_of(lambda: hvd.allreduce(x[:2], op=hvd.Sum + 2 * me, name="op")),
            error_of(lambda: hvd.broadcast(x[:2], me, name="root")),
            in_graphs,
            plain(hvd.allreduce(x[:2], name="shape")),
        ]

    def differing(what: str, name: str, first: object, second: object) -> str:
        return (
            f"The ranks' {what} differ in {name}: rank 0 has {first}, but rank 1 has "
            f"{second}. All ranks must make the same call."
        )

    texts = [
        differing("shapes", "allreduce 'allreduce.shape'", [2], [3]),
        differing("dtypes", "allreduce 'allreduce.dtype'", "int32", "float32"),
        differing("reduction operations", "allreduce 'allreduce.op'", 1, 3),
        differing("root ranks", "broadcast 'broadcast.root'", 0, 1),
        differing("shapes", "allreduce 'allreduce.traced'", [2], [3]),
    ]
    for found in results(2, rank):
        *eager, traced, again = found
        assert eager == [("MismatchedCallError", text) for text in texts[:4]]
        assert traced == ("FailedPreconditionError", texts[4])
        assert again == [1.0, 1.0]


@pytest.mark.parametrize(
    "kind", [tf.errors.FailedPreconditionError, hvd.HorovodInternalError]
)
def test_a_program_can_catch_errors_of_tensorflow_and_of_horovod(
    kind: type[Exception],
) -> None:
    def rank(me: int) -> str:
        with pytest.raises(kind, match="The ranks' shapes differ") as caught:
            hvd.allreduce(tf.ones(2 + me))
        copy = pickle.loads(pickle.dumps(caught.value))
        assert str(copy) == str(caught.value)
        return str(type(copy).__name__)

    assert results(2, rank) == ["MismatchedCallError"] * 2


def outcome(mode: str, call: Callable[[Any], Any], x: Any) -> int | str | None:
    """Return the code, or else the type of the error of a call; None if it has none."""
    try:
        if mode == "eager":
            call(x)
        elif mode == "function":
            tf.function(call)(x)
        else:
            with tf.Graph().as_default(), tf.compat.v1.Session() as session:
                session.run(call(tf.constant(x.numpy())))
    except tf.errors.OpError as error:
        code: int = error.error_code
        return code
    except (TypeError, ValueError) as error:
        return type(error).__name__
    return None


MISMATCHED = {
    "dtypes": lambda x, me: hvd.allreduce(tf.cast(x, [tf.int32, tf.int64][me])),
    "shapes": lambda x, me: hvd.allreduce(x[me:]),
    "shapes, scaled": lambda x, me: hvd.allreduce(x[me:], prescale_factor=2.0),
    "operations": lambda x, me: hvd.allreduce(x, op=[hvd.Sum, hvd.Max][me]),
    "numbers": lambda x, me: hvd.grouped_allreduce([x, x + 1][me:], name="group"),
    "gathered shapes": lambda x, me: hvd.allgather(tf.reshape(x, [[2, 2], [1, 4]][me])),
    "gathered scalars": lambda x, me: hvd.allgather(x[0]),
    "roots": lambda x, me: hvd.broadcast(x, me),
    "exchanged dtypes": lambda x, me: hvd.alltoall(tf.cast(x, [tf.int32, "int8"][me])),
    "scattered shapes": lambda x, me: hvd.reducescatter(x[me:]),
}
INVALID = {
    "splits": lambda x, me: hvd.alltoall(x, [3, 3]),
    "unequal splits": lambda x, me: hvd.alltoall(x[1:]),
    "root": lambda x, me: hvd.broadcast(x, 2),
    "process set": lambda x, me: hvd.allreduce(x, process_set=SETS[1 - me]),
    "average of bools": lambda x, me: hvd.allreduce(x > 1),
}
# Those for which no graph can be built.
UNBUILDABLE = {
    "scattered scalars": lambda x, me: hvd.reducescatter(x[0]),
    "strings": lambda x, me: hvd.broadcast(tf.strings.as_string(x), 0),
    "unknown process set": lambda x, me: hvd.allreduce(x, process_set=UNKNOWN),
}
SETS = [hvd.ProcessSet([0]), hvd.ProcessSet([1])]
UNKNOWN = hvd.ProcessSet([0])


@pytest.mark.parametrize("mode", ["eager", "function", "session"])
def test_errors_have_the_codes_of_horovods(mode: str) -> None:
    """Ranks go on with their next calls after each of them."""

    def rank(me: int) -> list[dict[str, int | str | None]]:
        hvd.shutdown()
        hvd.init(process_sets=SETS)
        x = tf.constant([1.0, 2, 3, 4])

        def outcomes(calls: dict[str, Any]) -> dict[str, int | str | None]:
            return {
                name: outcome(mode, lambda x, call=call: call(x, me), x)
                for name, call in calls.items()
            }

        found = [outcomes(MISMATCHED), outcomes(INVALID), outcomes(UNBUILDABLE)]
        assert outcome(mode, hvd.allreduce, x) is None
        hvd.shutdown()
        found.append(outcomes({"not initialized": lambda x, _: hvd.allreduce(x)}))
        hvd.init()
        return found

    types = ["ValueError", "TypeError", "ValueError"]
    if mode == "eager":
        types = [tf.errors.INVALID_ARGUMENT] * 3
    for mismatched, invalid, unbuildable, not_initialized in results(2, rank):
        assert mismatched == dict.fromkeys(MISMATCHED, tf.errors.FAILED_PRECONDITION)
        assert invalid == dict.fromkeys(INVALID, tf.errors.INVALID_ARGUMENT)
        assert unbuildable == dict(zip(UNBUILDABLE, types, strict=True))
        assert not_initialized == {"not initialized": tf.errors.FAILED_PRECONDITION}


@pytest.mark.parametrize("mode", ["eager", "function", "session"])
def test_two_calls_of_one_name_at_once_are_an_invalid_argument(mode: str) -> None:
    """The first one waits for a rank that has not called it."""

    def rank(me: int) -> int | str | None:
        from horovod.common.calls.submission import CallArguments
        from horovod.tensorflow.calls import TENSORFLOW_CALLS

        x = tf.ones(3)
        if me == 1:
            hvd.barrier()
            hvd.allreduce(x, name="same")
            return tf.errors.INVALID_ARGUMENT
        arguments = CallArguments(Kind.ALLREDUCE, "same", hvd.global_process_set)
        first = TENSORFLOW_CALLS.begin(arguments, [x.numpy()])
        code = outcome(mode, lambda x: hvd.allreduce(x, name="same"), x)
        hvd.barrier()
        first.wait()
        return code

    assert results(2, rank) == [tf.errors.INVALID_ARGUMENT] * 2


@pytest.mark.parametrize("traced", [False, True])
def test_a_rank_that_is_killed_is_named_to_the_others(traced: bool) -> None:
    def rank(me: int) -> tuple[str, str]:
        hvd.init()

        def step(x: Any) -> Any:
            return hvd.allreduce(x, op=hvd.Sum)

        call = tf.function(step) if traced else step
        call(tf.ones(3))
        if me == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return error_of(lambda: call(tf.ones(3)))

    survivor, killed = ends_of(2, rank)

    assert killed.code == -signal.SIGKILL
    name, text = survivor.value
    assert name == ("UnknownError" if traced else "FailedCallError")
    assert "Instance 1 " in text


def test_wrong_splits_are_an_error_of_tensorflow_and_a_value_error() -> None:
    def rank(_: int) -> list[tuple[str, bool]]:
        found = []
        for rows, splits in ((3, None), (1, [1, 1])):
            with pytest.raises(tf.errors.InvalidArgumentError) as caught:
                hvd.alltoall(tf.ones(rows), splits)
            found.append((str(caught.value), isinstance(caught.value, ValueError)))
        return found

    for (equal, is_value), (given, is_other) in results(2, rank):
        assert (is_value, is_other) == (True, True)
        assert equal == (
            "The tensor has 3 rows, which 2 ranks cannot share equally. Give splits: "
            "how many rows each rank gets."
        )
        assert "rows" in given


def test_strings_are_refused() -> None:
    def rank(_: int) -> tuple[str, str]:
        return error_of(lambda: hvd.allreduce(tf.constant("text")))

    assert results(1, rank) == [
        (
            "InvalidArgumentError",
            "The tensor's dtype is string, but popdist exchanges numbers and bools. "
            "Encode it as numbers first, such as tf.io.decode_raw does.",
        )
    ]
