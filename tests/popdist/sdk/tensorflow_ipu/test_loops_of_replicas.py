"""Loops in the runs of a PopDistStrategy, whose bodies call collectives."""

from typing import Any

import pytest
import tensorflow as tf
from tensorflow.python import ipu

from popdist.tensorflow import PopDistStrategy
from tests.popdist.tensorflow.instances import on_all

v1 = tf.compat.v1
SUM = tf.distribute.ReduceOp.SUM

both_loops = pytest.mark.parametrize("while_v2", [False, True], ids=["v1", "v2"])
both_rows = pytest.mark.parametrize("rows", [(2, 2), (1, 1)], ids=str)


def all_sum(value: Any) -> Any:
    """Return the sum over all replicas of a value on the device of this one."""
    own = tf.identity(value)
    return tf.distribute.get_replica_context().all_reduce(SUM, own)


def local_values(strategy: Any, session: Any, value: Any) -> list[float]:
    return [
        float(session.run(own)) for own in strategy.experimental_local_results(value)
    ]


@both_rows
@both_loops
def test_a_compiled_loop_trains_on_all_replicas(
    rows: tuple[int, ...], while_v2: bool
) -> None:
    def program(rank: int) -> Any:
        if not while_v2:
            v1.disable_control_flow_v2()
        config = ipu.config.IPUConfig()
        strategy = PopDistStrategy()
        strategy.update_ipu_config(config)
        config.configure_ipu_system()
        with tf.Graph().as_default():
            samples = tf.data.Dataset.range(100 * rank, 100 * rank + 100)
            queue = ipu.ipu_infeed_queue.IPUInfeedQueue(samples)
            outfeed = ipu.ipu_outfeed_queue.IPUOutfeedQueue()

            def body(total: Any, x: Any) -> Any:
                x = tf.cast(x, tf.float32)
                weight = v1.get_variable("w", initializer=4.0, use_resource=True)
                optimizer = v1.train.MomentumOptimizer(0.25, 0.0)
                # The gradient is the sample.
                train = optimizer.minimize(lambda: weight * x, var_list=[weight])
                return total + x, outfeed.enqueue(x), train

            def computation() -> Any:
                total = strategy.run(lambda: ipu.loops.repeat(2, body, [0.0], queue))
                return strategy.reduce(SUM, total, axis=None)

            with strategy.scope(), ipu.scopes.ipu_scope("/device:IPU:0"):
                compiled = ipu.ipu_compiler.compile(computation)
            dequeued = outfeed.dequeue()
            [weight] = (each for each in v1.global_variables() if each.name == "w:0")
            with v1.Session() as session:
                session.run([queue.initializer, v1.global_variables_initializer()])
                totals = [float(session.run(compiled)[0]) for _ in range(2)]
                weights = local_values(strategy, session, weight)
                return totals, weights, session.run(dequeued).tolist()

    # Each iteration takes one sample for each local replica, in the order of these.
    if rows == (2, 2):
        # 0 to 3 and 100 to 103; then 4 to 7 and 104 to 107.
        totals, weights = [412.0, 444.0], [4 - 0.25 * (412 + 444)] * 2
        fed = [
            [[first + i, first + i + 1] for i in range(0, 8, 2)] for first in (0, 100)
        ]
    else:
        totals, weights = [202.0, 210.0], [4 - 0.25 * (202 + 210)]
        fed = [[first + i for i in range(4)] for first in (0, 100)]
    assert on_all(rows, program) == [(totals, weights, each) for each in fed]


@both_rows
def test_a_compiled_loop_without_values_is_one_operation(rows: tuple[int, ...]) -> None:
    def program(rank: int) -> Any:
        v1.disable_control_flow_v2()
        config = ipu.config.IPUConfig()
        strategy = PopDistStrategy(add_ipu_cross_replica_reductions=False)
        strategy.update_ipu_config(config)
        config.configure_ipu_system()
        with tf.Graph().as_default(), strategy.scope():
            samples = tf.data.Dataset.from_tensors({"x": 1.0 + rank}).repeat()
            queue = ipu.ipu_infeed_queue.IPUInfeedQueue(samples)

            def body(x: Any) -> Any:
                weight = v1.get_variable("w", initializer=8.0, use_resource=True)
                optimizer = ipu.optimizers.CrossReplicaOptimizer(
                    v1.train.GradientDescentOptimizer(1.0)
                )
                return optimizer.minimize(weight * x)

            def computation() -> Any:
                return strategy.run(lambda: ipu.loops.repeat(2, body, [], queue))

            operation = ipu.ipu_compiler.compile(computation)
            assert isinstance(operation, tf.Operation)
            [weight] = v1.global_variables()
            with v1.Session() as session:
                session.run([queue.initializer, v1.global_variables_initializer()])
                session.run(operation)
                return local_values(strategy, session, weight)

    # The optimizer takes the mean of 1 and 2 in each iteration.
    assert on_all(rows, program) == [[5.0] * own for own in rows]


@both_rows
@pytest.mark.parametrize("mode", ["while_v1", "while_v2", "function"])
def test_bodies_and_conditions_of_all_loops_are_those_of_their_replica(
    rows: tuple[int, ...], mode: str
) -> None:
    def program(rank: int) -> Any:
        if mode == "while_v1":
            v1.disable_control_flow_v2()
        strategy = PopDistStrategy()
        outfeed = ipu.ipu_outfeed_queue.IPUOutfeedQueue()

        def replica() -> Any:
            context = tf.distribute.get_replica_context()
            number = tf.cast(context.replica_id_in_sync_group, tf.float32)
            inner = lambda x: ipu.loops.repeat(2, lambda x: x + all_sum(number), [x])  # noqa: E731
            nested = ipu.loops.repeat(3, inner, [number])
            # By one more with each iteration, on all replicas alike.
            powers = ipu.loops.while_loop(
                lambda i, x: i < 3.5,
                lambda i, x: (i + all_sum(1.0), x * (number + 1)),
                [0.0, 1.0],
            )
            operation = ipu.loops.repeat(2, lambda: outfeed.enqueue(all_sum(number)))
            with tf.control_dependencies([operation]):
                return [tf.identity(each) for each in (nested, *powers)]

        def floats(results: Any) -> list[list[float]]:
            return [[float(value) for value in each] for each in results]

        def results() -> Any:
            return [
                strategy.experimental_local_results(each)
                for each in strategy.run(replica)
            ]

        if mode == "function":
            return floats(tf.function(results)()), outfeed.dequeue().numpy().tolist()
        with tf.Graph().as_default(), v1.Session() as session:
            every, dequeued = results(), None
            dequeued = outfeed.dequeue()
            return floats(session.run(every)), session.run(dequeued).tolist()

    if rows == (2, 2):
        # The sum of the numbers is 6, and one iteration adds 4.
        expected = [
            ([[36.0 + n, 37.0 + n], [4.0, 4.0], [1.0 + n, 2.0 + n]], [[6.0, 6.0]] * 2)
            for n in (0, 2)
        ]
    else:
        expected = [([[6.0 + n], [4.0], [(1.0 + n) ** 2]], [1.0, 1.0]) for n in (0, 1)]
    assert on_all(rows, program) == expected


@pytest.mark.parametrize("while_v2", [False, True], ids=["v1", "v2"])
def test_a_condition_that_differs_between_local_replicas_is_an_error(
    while_v2: bool,
) -> None:
    def program(rank: int) -> str:
        if not while_v2:
            v1.disable_control_flow_v2()
        strategy = PopDistStrategy()

        def replica() -> Any:
            context = tf.distribute.get_replica_context()
            limit = context.replica_id_in_sync_group + 2
            return ipu.loops.while_loop(lambda i: i < limit, lambda i: i + 1, [0])

        with tf.Graph().as_default(), v1.Session() as session:
            results = strategy.experimental_local_results(strategy.run(replica))
            with pytest.raises(tf.errors.InvalidArgumentError) as error:
                session.run(results)
            return error.value.message

    for text in on_all((2,), program):
        assert (
            "The condition of a loop is true for some local replicas, and false for "
            "others. Let it depend on what is equal on all replicas." in text
        )
