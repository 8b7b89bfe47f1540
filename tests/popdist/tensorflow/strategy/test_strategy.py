"""PopDistStrategy's collectives, variables and custom loops, in several layouts."""

import os
import subprocess
import sys
from threading import Thread
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from popdist.errors import MismatchError, PeerLostError
from popdist.tensorflow import PopDistStrategy
from tests.popdist.engine.members import errors
from tests.popdist.tensorflow.instances import ends_of, on_all

SUM, MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN
ON_READ = tf.VariableSynchronization.ON_READ


def lists(strategy: PopDistStrategy, value: Any) -> Any:
    """Return what each local replica has of a value."""
    return [
        tf.nest.map_structure(lambda tensor: tensor.numpy().tolist(), each)
        for each in strategy.experimental_local_results(value)
    ]


@pytest.mark.parametrize("rows", [(1,), (2,), (1, 1), (2, 1)], ids=str)
def test_collectives_are_among_all_replicas_of_the_job(rows: tuple[int, ...]) -> None:
    def program(rank: int) -> Any:
        strategy = PopDistStrategy()

        def step() -> Any:
            context = tf.distribute.get_replica_context()
            number = context.replica_id_in_sync_group + 1
            x = tf.cast(number, tf.float32)
            rows = tf.fill([number], number)
            return (
                context.all_reduce(SUM, [x, number]),
                context.all_reduce(MEAN, [x, number]),
                context.all_reduce(SUM, tf.complex(x, -x)),
                context.all_reduce(SUM, tf.IndexedSlices(x[None], number[None])).values,
                context.all_gather(rows, axis=0),
                context.all_gather(tf.complex(x, -x)[None], axis=0),
            ), x

        found = []
        for run in (strategy.run, tf.function(strategy.run)):
            inside, x = run(step)
            reduced = [strategy.reduce(SUM, x), strategy.reduce("mean", x, axis=None)]
            found.append((lists(strategy, inside), [float(y) for y in reduced]))
        assert found[0] == found[1]
        return strategy.num_replicas_in_sync, found[0]

    replicas = sum(rows)
    numbers = range(1, replicas + 1)
    total, mean = sum(numbers), sum(numbers) / replicas
    inside = (
        [total, total],
        [mean, mean],
        complex(total, -total),
        [*numbers],
        [number for number in numbers for _ in range(number)],
        [complex(number, -number) for number in numbers],
    )
    assert on_all(rows, program) == [
        (replicas, ([inside] * local, [total, mean])) for local in rows
    ]


def test_long_arrays_have_the_same_bits_in_every_split() -> None:
    def program(rank: int) -> list[bytes]:
        strategy = PopDistStrategy()

        def values(context: Any) -> Any:
            generator = np.random.default_rng(context.replica_id_in_sync_group)
            return tf.constant(generator.normal(size=1 << 17).astype(np.float32))

        own = strategy.experimental_distribute_values_from_function(values)
        reduced = [strategy.reduce(op, own, axis=None) for op in (SUM, MEAN)]
        return [tensor.numpy().tobytes() for tensor in reduced]

    (expected,) = on_all((4,), program)
    for rows in ((2, 2), (3, 1)):
        assert on_all(rows, program) == [expected, expected]


def test_variables_begin_with_the_values_of_instance_0() -> None:
    def program(rank: int) -> Any:
        with PopDistStrategy().scope():
            made = [
                tf.Variable([1.0 + rank, 2.0]),
                tf.Variable(lambda: tf.constant(rank, tf.int64)),
                tf.Variable(f"instance {rank}"),
            ]
        return [
            tf.nest.map_structure(lambda part: part.numpy(), v.values) for v in made
        ]

    first, second = on_all((2, 1), program)
    assert [[part.tolist() for part in parts] for parts in first[0:1]] == [[[1, 2]] * 2]
    assert second[0][0].tolist() == [1, 2]
    assert (first[1], second[1]) == ((0, 0), (0,))
    # Strings are not exchanged.
    assert (first[2], second[2]) == ((b"instance 0",) * 2, (b"instance 1",))


def test_one_instance_alone_may_read_what_replicas_have_of_their_own() -> None:
    def program(rank: int) -> Any:
        strategy = PopDistStrategy()
        with strategy.scope():
            total, mean = (
                tf.Variable(0.0, synchronization=ON_READ, aggregation=aggregation)
                for aggregation in (
                    tf.VariableAggregation.SUM,
                    tf.VariableAggregation.MEAN,
                )
            )

        @tf.function
        def step() -> None:
            context = tf.distribute.get_replica_context()
            own = tf.cast(context.replica_id_in_sync_group, tf.float32)
            total.assign_add(own)
            mean.assign(own)

        found = []
        for _ in range(2):
            strategy.run(step)
            if rank == 1:
                found.append([float(total.numpy()), float(mean.numpy())])
        total.assign(8.0)
        return [*found, [float(total.numpy())]]

    # Means are given to the replicas, which assign to them again.
    assert on_all((2, 1), program) == [
        [[8]],
        [[3, 1], [6, 1], [8]],
    ]


def test_all_replicas_may_read_an_aggregate_within_the_run_that_writes_it() -> None:
    """As the metrics of tf_keras do for the logs of a step."""

    def program(rank: int) -> Any:
        strategy = PopDistStrategy()
        with strategy.scope():
            total = tf.Variable(
                0.0, synchronization=ON_READ, aggregation=tf.VariableAggregation.SUM
            )

        def replica() -> Any:
            context = tf.distribute.get_replica_context()
            total.assign_add(tf.cast(context.replica_id_in_sync_group, tf.float32))
            first = context.merge_call(lambda _: tf.identity(total))
            total.assign_add(1.0)
            return first, context.merge_call(lambda _: tf.identity(total))

        step = tf.function(lambda: strategy.run(replica))
        found = []
        for _ in range(2):
            local = strategy.experimental_local_results(step())[-1]
            found += [float(strategy.experimental_local_results(x)[0]) for x in local]
        return [*found, float(total.numpy())]

    # Three replicas add 0, 1 and 2, and then 1 each.
    assert on_all((2, 1), program) == [[3, 6, 9, 12, 12]] * 2


@pytest.mark.parametrize("in_function", [False, True], ids=["eager", "tf.function"])
def test_what_functions_write_that_were_traced_before_is_aggregated(
    in_function: bool,
) -> None:
    def program(rank: int) -> Any:
        strategy = PopDistStrategy()
        with strategy.scope():
            total = tf.Variable(
                0.0, synchronization=ON_READ, aggregation=tf.VariableAggregation.SUM
            )

        @tf.function
        def add() -> None:
            if tf.constant(True):
                total.assign_add(1.0)

        outer = tf.function(lambda: add())
        found = []
        for _ in range(3):
            # Another function each time, that calls what the first one has traced.
            step = lambda: outer()  # noqa: E731
            run = lambda s=step: strategy.run(s)  # noqa: E731
            (tf.function(run) if in_function else run)()
            found.append(float(total.numpy()))
        return found

    assert on_all((2, 1), program) == [[3, 6, 9]] * 2


@pytest.mark.parametrize(
    ("rows", "accumulated"),
    [((1,), 4), ((1,), 2), ((2,), 1), ((1, 1), 2), ((2, 2), 1), ((2, 1), 1)],
    ids=str,
)
def test_one_weight_is_the_same_in_every_layout(
    rows: tuple[int, ...], accumulated: int
) -> None:
    def program(rank: int) -> float:
        strategy = PopDistStrategy()
        replicas = sum(rows)
        samples = [1.0, 2.0, 3.0, 4.0] if replicas != 3 else [2.0, 2.5, 3.0]
        share = len(samples) // replicas
        with strategy.scope():
            weight = tf.Variable(0.0 + rank)
            optimizer = tf.keras.optimizers.SGD(28 / 225)

        @tf.function
        def step(inputs: Any) -> None:
            gradients = []
            for x in tf.split(inputs, accumulated):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((weight * x - 1) ** 2) / 2
                gradients.append(tape.gradient(loss, weight))
            total = tf.add_n(gradients) / (accumulated * replicas)
            optimizer.apply_gradients([(total, weight)])

        def inputs(context: Any) -> Any:
            begin = context.replica_id_in_sync_group * share
            return tf.constant(samples[begin : begin + share])

        own = strategy.experimental_distribute_values_from_function(inputs)
        strategy.run(step, args=(own,))
        return round(float(weight.numpy()), 6)

    assert on_all(rows, program) == [0.311111] * len(rows)


@pytest.mark.parametrize("rows", [(2,), (1, 1)], ids=str)
@pytest.mark.parametrize("is_outside", [False, True], ids=["inside", "outside"])
def test_loops_of_sessions_are_around_the_local_replicas(
    rows: tuple[int, ...], is_outside: bool
) -> None:
    def loop(body: Any) -> Any:
        return tf.while_loop(lambda i, x: i < 3, body, [0, 1.0])[1]

    def program(rank: int) -> Any:
        tf.compat.v1.disable_control_flow_v2()
        with tf.Graph().as_default():
            strategy = PopDistStrategy()

            def step(x: Any) -> Any:
                own = tf.identity(x)  # on the device of the replica
                return tf.distribute.get_replica_context().all_reduce(SUM, own)

            def inside() -> Any:
                return loop(lambda i, x: (i + 1, step(x)))

            def around(i: Any, x: Any) -> Any:
                return i + 1, strategy.reduce(MEAN, strategy.run(step, args=(x,)))

            try:
                result = loop(around) if is_outside else strategy.run(inside)
            except NotImplementedError as error:
                return str(error)
            values = strategy.experimental_local_results(result)
            with tf.compat.v1.Session() as session:
                return [float(value) for value in session.run(values)]

    refusal = (
        "The 2 local replicas call a collective in a while loop of strategy.run's "
        "function, each in a loop of its own, and a session's graph cannot connect two "
        "loops. Make the loop by ipu.loops.while_loop of tensorflow.python.ipu, call "
        "strategy.run in the body of one loop, or start an instance for each replica "
        "(poprun --num-instances)."
    )
    is_refused = rows == (2,) and not is_outside
    assert on_all(rows, program) == [refusal if is_refused else [8.0]] * len(rows)


@pytest.mark.parametrize("rows", [(1, 1), (2, 1)], ids=str)
def test_sessions_train_on_all_replicas(rows: tuple[int, ...]) -> None:
    v1 = tf.compat.v1

    def program(rank: int) -> Any:
        strategy = PopDistStrategy()
        with strategy.scope():
            weight = v1.get_variable("w", initializer=1.0 + rank, use_resource=True)
            total = v1.get_variable(
                "total",
                initializer=0.0,
                use_resource=True,
                trainable=False,
                synchronization=ON_READ,
                aggregation=v1.VariableAggregation.SUM,
            )
            optimizer = v1.train.GradientDescentOptimizer(0.25)

        def step() -> Any:
            context = tf.distribute.get_replica_context()
            x = tf.cast(context.replica_id_in_sync_group + 1, tf.float32)
            train = optimizer.minimize(lambda: weight * x, var_list=[weight])
            with tf.control_dependencies([train, total.assign_add(x)]):
                return tf.identity(x)

        with strategy.scope():
            reduced = strategy.reduce("SUM", strategy.run(step))
            values = [strategy.extended.read_var(each) for each in (weight, total)]
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            sums = [float(session.run(reduced)) for _ in range(2)]
            return sums, [float(session.run(value)) for value in values]

    def in_graph(rank: int) -> Any:
        with tf.Graph().as_default():
            return program(rank)

    # Two steps, by a quarter of the sum of the numbers.
    sum_ = sum(range(1, sum(rows) + 1))
    ended = ([sum_, sum_], [1 - sum_ / 2, 2 * sum_])
    assert on_all(rows, in_graph) == [ended] * 2


def test_other_operations_are_refused() -> None:
    def program(rank: int) -> str:
        engine = PopDistStrategy().extended._engine
        with pytest.raises(ValueError, match="Unsupported") as error:
            engine.reduce_tensors("MAX", [[tf.constant(1.0)]])
        return str(error.value)

    assert on_all(1, program) == [
        "Unsupported reduce op: MAX. Ask for tf.distribute.ReduceOp.SUM or MEAN."
    ]


def test_a_device_that_is_no_ipu_is_refused() -> None:
    with pytest.raises(ValueError, match="names no IPU") as error:
        PopDistStrategy("/gpu:0")

    assert str(error.value) == (
        "ipu_device is '/gpu:0', but names no IPU. Leave it out: each local replica "
        "has a logical CPU."
    )


def test_gathers_along_no_axis_and_strings_are_refused_with_the_way_out() -> None:
    def program(rank: int) -> Any:
        strategy = PopDistStrategy()
        told = []
        for value, axis in ((tf.constant(1.0), 0), (tf.ones((2, 1)), 2), ("a", 0)):
            for gather in (strategy.gather, tf.function(strategy.gather)):
                with pytest.raises((TypeError, ValueError)) as error:
                    gather(tf.convert_to_tensor(value), axis)
                # A function adds where it was called, and the class.
                last = str(error.value).strip().splitlines()[-1].strip()
                told.append(last.partition("Error: ")[2] or last)
        return told[::2], told[1::2]

    axis = "that are gathered have {}. tf.expand_dims adds one."
    expected = [
        f"The axis is 0, but tensors of the shape () {axis.format(0)}",
        f"The axis is 2, but tensors of the shape (2, 1) {axis.format(2)}",
        "The tensor's dtype is string, but popdist exchanges numbers and bools. Encode "
        "it as numbers first, such as tf.io.decode_raw does.",
    ]
    assert on_all(2, program) == [(expected, expected)] * 2


@pytest.mark.parametrize("rows", [(2,), (1, 1), (2, 2)], ids=str)
@pytest.mark.parametrize("in_function", [False, True], ids=["eager", "tf.function"])
def test_variables_that_only_the_first_replica_writes_are_alike_on_all_instances(
    rows: tuple[int, ...], in_function: bool
) -> None:
    def program(rank: int) -> Any:
        strategy = PopDistStrategy()
        first = tf.VariableAggregation.ONLY_FIRST_REPLICA
        values = [3.5, -(2**40), True, 1 - 2j]
        dtypes = [tf.float16, tf.int64, tf.bool, tf.complex64]
        with strategy.scope():
            dense = [
                tf.Variable(tf.zeros((), dtype), aggregation=first) for dtype in dtypes
            ]
            sparse = tf.Variable([0.0, 0.0], aggregation=first)
            on_read = tf.Variable(0.0, synchronization=ON_READ, aggregation=first)

        def step() -> None:
            number = tf.distribute.get_replica_context().replica_id_in_sync_group
            for variable, value in zip(dense, values, strict=True):
                own = tf.constant(value, variable.dtype)
                variable.assign(tf.where(number == 0, own, tf.zeros_like(own)))
            rows = tf.range(1 - number % 2)
            slices = tf.IndexedSlices(tf.ones_like(rows, tf.float32), rows)
            sparse.scatter_add(slices)
            on_read.assign_add(tf.cast(number, tf.float32) + 1)

        run = lambda: strategy.run(step)  # noqa: E731
        (tf.function(run) if in_function else run)()
        parts = [*dense, sparse]
        own = [[part.numpy().tolist() for part in each.values] for each in parts]
        return own, float(on_read.numpy())

    kept = [3.5, -(2**40), True, 1 - 2j, [1.0, 0.0]]
    assert on_all(rows, program) == [
        ([[value] * local for value in kept], 1.0) for local in rows
    ]


@pytest.mark.parametrize("rows", [(1,), (2,), (2, 1)], ids=str)
@pytest.mark.parametrize("in_function", [False, True], ids=["eager", "tf.function"])
def test_strings_are_those_of_the_first_replica_of_each_instance(
    rows: tuple[int, ...], in_function: bool
) -> None:
    def program(rank: int) -> Any:
        strategy = PopDistStrategy()
        first = tf.VariableAggregation.ONLY_FIRST_REPLICA
        with strategy.scope():
            text = tf.Variable("none", synchronization=ON_READ, aggregation=first)
            count = tf.Variable(0, synchronization=ON_READ, aggregation=first)

        def step() -> None:
            number = tf.distribute.get_replica_context().replica_id_in_sync_group
            text.assign(tf.strings.as_string(number))
            count.assign(number + 1)

        run = lambda: strategy.run(step)  # noqa: E731
        (tf.function(run) if in_function else run)()
        return text.numpy().decode(), int(count.numpy())

    starts = np.cumsum((0, *rows[:-1]))
    assert on_all(rows, program) == [(str(start), 1) for start in starts]


@pytest.mark.parametrize("rows", [(2,), (1, 1)], ids=str)
def test_what_replicas_all_reduce_stays_apart_where_a_program_reduces_it_itself(
    rows: tuple[int, ...],
) -> None:
    def program(rank: int) -> Any:
        strategy = PopDistStrategy(add_ipu_cross_replica_reductions=False)
        with strategy.scope():
            weight = tf.Variable(0.0)
            optimizer = tf.keras.optimizers.SGD(1.0)

        def step() -> Any:
            context = tf.distribute.get_replica_context()
            own = tf.cast(context.replica_id_in_sync_group + 1, tf.float32)
            optimizer.apply_gradients([(own, weight)])
            return context.all_reduce(SUM, own)

        own = strategy.run(tf.function(step))
        weights = [float(part) for part in weight.values]
        return lists(strategy, own), weights, float(strategy.reduce(SUM, own))

    found = on_all(rows, program)
    numbers = [1.0, 2.0]
    for part in (0, 1):
        every = [number for instance in found for number in instance[part]]
        assert every == (numbers if part == 0 else [-number for number in numbers])
    assert {instance[2] for instance in found} == {3.0}


def test_replicas_return_dictionaries_whose_keys_have_no_order() -> None:
    def program(rank: int) -> Any:
        strategy = PopDistStrategy()
        found = strategy.run(lambda: {1: tf.constant(2.0), "a": tf.constant(3.0)})
        return {key: float(reduced(strategy, x)) for key, x in found.items()}

    def reduced(strategy: Any, x: Any) -> Any:
        return strategy.reduce(SUM, x, axis=None)

    assert on_all((2,), program) == [{1: 4.0, "a": 6.0}]


def test_programs_for_several_workers_learn_which_instance_they_are() -> None:
    def program(rank: int) -> Any:
        resolver = PopDistStrategy().cluster_resolver
        workers = resolver.cluster_spec().as_dict()
        return resolver.task_type, resolver.task_id, workers

    workers = {"worker": ["instance-0", "instance-1"]}
    assert on_all(2, program) == [("worker", 0, workers), ("worker", 1, workers)]


def test_a_variable_from_outside_the_scope_is_refused_with_the_way_out() -> None:
    def program(rank: int) -> str:
        strategy = PopDistStrategy()
        weight = tf.Variable(1.0, name="weight")
        optimizer = tf.keras.optimizers.SGD()
        with pytest.raises(ValueError, match="scope") as error:
            strategy.run(lambda: optimizer.apply_gradients([(1.0 * weight, weight)]))
        return str(error.value)

    assert on_all(1, program) == [
        "The variable weight:0 was not made in the scope of this PopDistStrategy, so "
        "the replicas do not share it. Make the model and the optimizer within `with "
        "strategy.scope():`."
    ]


def test_strategies_train_one_after_the_other_but_are_not_mixed() -> None:
    def program(rank: int) -> Any:
        first, second = PopDistStrategy(), PopDistStrategy()
        weights, counts = [], []
        for strategy in (first, second):
            with strategy.scope():
                weights.append(tf.Variable(1.0 + rank, name="weight"))
                count = tf.Variable(
                    0.0,
                    synchronization=ON_READ,
                    aggregation=tf.VariableAggregation.SUM,
                    name="count",
                )
                counts.append(count)
                optimizer = tf.keras.optimizers.SGD(0.25)
            step = [(tf.constant(1.0), weights[-1])]
            for _ in range(2):
                strategy.run(lambda o=optimizer, s=step: o.apply_gradients(s))
        errors = []
        for enter in (second.scope, tf.distribute.OneDeviceStrategy("CPU:0").scope):
            with enter(), pytest.raises(RuntimeError) as mixed:
                first.run(lambda: tf.constant(1.0))
            errors.append(str(mixed.value))
        for variable in (weights[0], counts[0]):
            with pytest.raises(RuntimeError) as mixed:
                second.run(lambda v=variable: v.assign_add(1.0))
            errors.append(str(mixed.value))
        return [float(weight.numpy()) for weight in weights], errors

    scope = (
        "Another strategy is in use here, and two cannot be mixed. Make one "
        "PopDistStrategy, and leave the scope of any other one before scope(), run() "
        "or reduce() of this one."
    )
    variable = (
        "The variable {}:0 belongs to another strategy than the one in use here, "
        "and two cannot be mixed. Make one PopDistStrategy, and make the model and the "
        "optimizer in its scope."
    )
    # The sum of two gradients of 1, by a rate of 0.25, twice from 1.
    variables = [variable.format(name) for name in ("weight", "count")]
    ended = ([0.0, 0.0], [scope, scope, *variables])
    assert on_all(2, program) == [ended, ended]


def test_without_poprun_there_is_one_replica() -> None:
    program = """
from popdist.tensorflow import PopDistStrategy
import tensorflow as tf

strategy = PopDistStrategy()
with strategy.scope():
    weight = tf.Variable(1.0)
    optimizer = tf.keras.optimizers.SGD(0.25)
strategy.run(lambda: optimizer.apply_gradients([(tf.constant(1.0), weight)]))
total = strategy.reduce("SUM", weight, axis=None)
print(strategy.num_replicas_in_sync, float(weight.numpy()), float(total))
"""

    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True
    )

    assert (ran.returncode, ran.stdout) == (0, "1 0.75 0.75\n"), ran.stderr


def test_too_few_devices_are_refused_with_the_way_out() -> None:
    def program(rank: int) -> str:
        tf.constant(1.0) + 1
        with pytest.raises(RuntimeError, match="local replicas") as error:
            PopDistStrategy()
        return str(error.value)

    assert on_all((2,), program) == [
        "This instance has 2 local replicas, but TensorFlow has 1 logical CPU, and can "
        "have no more once an operation has run or a device was made. Import "
        "popdist.tensorflow before the first operation, or make 2 logical CPUs with "
        "tf.config.set_logical_device_configuration."
    ]


def test_an_instance_that_makes_another_call_ends_it_for_all() -> None:
    def program(rank: int) -> None:
        strategy = PopDistStrategy()
        strategy.reduce(SUM, tf.zeros(1 + rank), axis=None)

    for kind, text in errors(ends_of(2, program)):
        assert kind is MismatchError
        assert "Tensor layouts did not match on all instances" in text


def test_an_instance_that_dies_is_named_to_the_others() -> None:
    def program(rank: int) -> None:
        strategy = PopDistStrategy()
        reduce = tf.function(lambda x: strategy.reduce(SUM, x, axis=None))
        reduce(tf.zeros(4))
        if rank == 1:
            os._exit(3)
        reduce(tf.zeros(4))

    survivor, dead = ends_of(2, program)
    assert dead.code == 3
    assert isinstance(survivor.error, tf.errors.UnknownError | PeerLostError)
    assert "Instance 1 has ended" in str(survivor.error)


def test_a_run_of_another_thread_waits_and_aggregates_what_its_replicas_write() -> None:
    def program(rank: int) -> Any:
        strategy = PopDistStrategy()
        with strategy.scope():
            first, second = (
                tf.Variable(
                    0.0,
                    synchronization=ON_READ,
                    aggregation=tf.VariableAggregation.SUM,
                )
                for _ in range(2)
            )
        found: list[float] = []

        def run_second() -> None:
            strategy.run(lambda: second.assign_add(1.0))
            found.append(float(second.numpy()))

        other = Thread(target=run_second)

        def begin_second() -> None:
            first.assign_add(1.0)
            if tf.distribute.get_replica_context().replica_id_in_sync_group == 0:
                other.start()
                # The other run has no end before this one's.
                other.join(1)

        strategy.run(begin_second)
        other.join()
        return [float(first.numpy()), *found]

    assert on_all((2,), program) == [[2.0, 2.0]]
