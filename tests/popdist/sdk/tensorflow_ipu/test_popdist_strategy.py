"""The options for IPUs of Keras models under PopDistStrategy."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python import ipu

import popdist.tensorflow
from tests.popdist.tensorflow.instances import (
    keras_of,
    on_all,
    one_weight_model,
    train_in_float16,
)


@pytest.mark.filterwarnings("ignore")
# Momentum is added in two updates: by 1 + 2, and by 1 - 1; or by the means of them.
@pytest.mark.parametrize(
    ("keras_version", "rows", "method", "expected"),
    [
        (2, (1, 1), "sum", -3 - 1.5),
        (2, (2, 2), "mean", -1.5 - 0.75),
        (3, (1, 1), "mean", -1.5 - 0.75),
        (3, (2, 2), "sum", -3 - 1.5),
    ],
    ids=str,
)
def test_gradients_of_several_steps_are_applied_at_once_on_all_replicas(
    keras_version: int,
    rows: tuple[int, ...],
    method: str,
    expected: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keras = keras_of(keras_version)
    monkeypatch.setattr("tensorflow.keras", keras)

    def program(rank: int) -> Any:
        with ipu.distributed.popdist_strategy.PopDistStrategy().scope():
            model = one_weight_model(keras)
            model.compile(
                keras.optimizers.SGD(1.0, momentum=0.5),
                # Its gradient is the sample.
                lambda _, output: output,
                steps_per_execution=4,
            )
        model.set_gradient_accumulation_options(
            2, gradient_accumulation_reduction_method=method
        )
        model.set_asynchronous_callbacks(True)
        # The replicas of a step have the same sample.
        samples = np.repeat([1.0, 2.0, 1.0, -1.0], rows[rank]).astype(np.float32)
        model.fit(samples[:, None], samples[:, None], 1, shuffle=False, verbose=0)
        updates = int(tf.convert_to_tensor(model.optimizer.iterations))
        return float(model.get_weights()[0].item()), updates

    assert on_all(rows, program) == [(expected, 2)] * len(rows)


@pytest.mark.parametrize("rows", [(2, 2), (1, 1)])
def test_each_local_replica_enqueues_and_sums_are_over_all_replicas(
    rows: tuple[int, ...],
) -> None:
    def program(rank: int) -> Any:
        strategy = ipu.distributed.popdist_strategy.PopDistStrategy()
        every = ipu.ipu_outfeed_queue.IPUOutfeedQueue()
        last = ipu.ipu_outfeed_queue.IPUOutfeedQueue(
            outfeed_mode=ipu.ipu_outfeed_queue.IPUOutfeedMode.LAST
        )
        config = ipu.config.IPUConfig()
        distribution = config.experimental.multi_replica_distribution
        assert strategy.update_ipu_config(config) is config
        config.configure_ipu_system()

        def replica(x: Any) -> None:
            own = tf.cast(x, tf.float32) + tf.cast(
                tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32
            )
            sums = ipu.cross_replica_ops.cross_replica_sum(own)
            every.enqueue((own, sums))
            last.enqueue(ipu.cross_replica_ops.cross_replica_mean(own))
            ipu.cross_replica_ops.cross_replica_sum(own, 1)
            with pytest.raises(NotImplementedError, match="replica_group_size 3"):
                ipu.cross_replica_ops.cross_replica_sum(own, 3)

        step = tf.function(lambda x: strategy.run(replica, args=(x,)))
        step(tf.constant(0))
        step(tf.constant(10))
        assert (distribution.process_count, distribution.process_index) == (2, rank)
        found = every.dequeue(), last.dequeue()
        return tf.nest.map_structure(lambda each: each.numpy().tolist(), found)

    own: list[Any]
    if rows == (1, 1):
        own = [[0, 10], [1, 11]]
        expected = [(((each, [1, 21]), 10.5)) for each in own]
    else:
        own = [[[0, 1], [10, 11]], [[2, 3], [12, 13]]]
        expected = [((each, [[6, 6], [46, 46]]), [11.5, 11.5]) for each in own]
    assert on_all(rows, program) == expected


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("keras_version", [2, 3])
def test_an_execution_ends_with_the_steps_that_fit_is_given(
    keras_version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    keras = keras_of(keras_version)
    monkeypatch.setattr("tensorflow.keras", keras)

    def program(rank: int) -> Any:
        with ipu.distributed.popdist_strategy.PopDistStrategy().scope():
            model = one_weight_model(keras)
            # As programs of older releases count it: the batches of all replicas.
            model.compile(
                keras.optimizers.SGD(1.0),
                # Its gradient is the sample.
                lambda _, output: output,
                steps_per_execution=8,
            )
        data = tf.data.Dataset.from_tensors((np.ones(1), np.ones(1)))
        data = data.repeat().batch(1, drop_remainder=True)
        weights = []
        for _ in range(2):
            model.fit(data, steps_per_epoch=4, epochs=2, verbose=0)
            weights.append(float(model.get_weights()[0].item()))
        if keras_version == 3:
            model.steps_per_execution = 3
            with pytest.raises(ValueError, match="but must divide the 4 steps of a"):
                model.fit(data, steps_per_epoch=8, verbose=0)
        return weights

    # Two epochs have two steps each, of which each takes 1 off the weight.
    assert on_all((2,), program) == [[-4, -8]]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("rows", [(2, 2), (1, 1)], ids=str)
def test_each_local_replica_enqueues_the_learning_rates_of_its_updates(
    rows: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    keras = keras_of(2)
    monkeypatch.setattr("tensorflow.keras", keras)

    class Enqueued(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self.updates = tf.Variable(0.0, trainable=False)
            self.queue = ipu.ipu_outfeed_queue.IPUOutfeedQueue()

        def __call__(self, step: Any) -> Any:
            rate = 1 + 0.5 * self.updates
            self.queue.enqueue({"rate": rate})
            self.updates.assign_add(1.0)
            return rate

    def program(rank: int) -> Any:
        with ipu.distributed.popdist_strategy.PopDistStrategy().scope():
            model = one_weight_model(keras)
            rates = Enqueued()
            model.compile(
                keras.optimizers.legacy.SGD(rates),
                # Its gradient is the sample.
                lambda _, output: output,
                steps_per_execution=4,
            )
        model.set_gradient_accumulation_options(2)
        samples = np.ones((4 * rows[rank], 1), np.float32)
        model.fit(samples, samples, 1, verbose=0)
        found = rates.queue.dequeue()["rate"].numpy().tolist()
        return found, float(model.get_weights()[0].item())

    # Each update takes 2, the sum of two steps, off the weight, times the rate.
    enqueued = [[1.0] * 2, [1.5] * 2] if rows == (2, 2) else [1.0, 1.5]
    assert on_all(rows, program) == [(enqueued, -2 - 3)] * 2


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("keras_version", [2, 3])
def test_keras_is_given_numbers_of_batches_of_which_each_local_replica_takes_one(
    keras_version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    keras = keras_of(keras_version)
    monkeypatch.setattr("tensorflow.keras", keras)

    def program(rank: int) -> Any:
        with ipu.distributed.popdist_strategy.PopDistStrategy().scope():
            model = one_weight_model(keras)
            model.compile("sgd", "mse")
        data = tf.data.Dataset.from_tensor_slices([[1.0]] * 5)
        data = data.map(lambda x: (x, x)).repeat().batch(1)
        steps = {"train": 0, "test": 0}

        class Count(keras.callbacks.Callback):  # type: ignore[misc, name-defined]
            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                steps["train"] += 1

            def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
                steps["test"] += 1

        model.fit(
            data,
            steps_per_epoch=4,
            epochs=2,
            verbose=0,
            callbacks=[Count()],
            validation_data=data,
            validation_steps=2,
        )
        trained = dict(steps)
        model.evaluate(data, steps=6, verbose=0, callbacks=[Count()])
        rows = len(model.predict(data, steps=2, verbose=0))
        with pytest.raises(ValueError, match="steps_per_epoch is 3, but must be a mul"):
            model.fit(data, steps_per_epoch=3, verbose=0)
        return trained["train"], trained["test"], steps["test"], rows

    assert on_all((2, 2), program) == [(4, 2, 5, 2)] * 2


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("keras_version", [2, 3])
def test_all_replicas_skip_the_sum_of_gradients_of_which_one_overflows(
    keras_version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = (2, 2)
    keras = keras_of(keras_version)
    monkeypatch.setattr("tensorflow.keras", keras)

    def program(rank: int) -> Any:
        samples = [1] * (6 * rows[rank])
        if rank == 1:
            # The last replica's in the second step, which completes the first sum.
            samples[3] = 60000
        return train_in_float16(keras, samples, accumulated=2)

    # The means of the replicas are 1, and two steps are added up.
    assert on_all(rows, program) == [([1.0, 0.75, 0.5], 32.0)] * 2


@pytest.mark.parametrize("rows", [(2,), (1, 1)], ids=str)
def test_an_optimizer_adds_up_the_gradients_that_the_strategy_leaves_apart(
    rows: tuple[int, ...],
) -> None:
    def program(rank: int) -> Any:
        config = ipu.config.IPUConfig()
        popdist.tensorflow.set_ipu_config(config, ipus_per_replica=1)
        config.configure_ipu_system()
        strategy = ipu.distributed.popdist_strategy.PopDistStrategy(
            add_ipu_cross_replica_reductions=False
        )
        with strategy.scope():
            weight = tf.Variable(0.0)
        descent = tf.compat.v1.train.GradientDescentOptimizer(1.0)
        optimizer = ipu.optimizers.CrossReplicaOptimizer(descent)

        @tf.function
        def step() -> None:
            context = tf.distribute.get_replica_context()
            own = tf.cast(context.replica_id_in_sync_group + 1, tf.float32)
            optimizer.apply_gradients([(own, weight)])

        strategy.run(step)
        return [float(part) for part in weight.values]

    # The mean of 1 and 2.
    assert on_all(rows, program) == [[-1.5] * local for local in rows]


@pytest.mark.parametrize("rows", [(2,), (1, 1)], ids=str)
def test_replicas_take_batches_from_one_iterator(rows: tuple[int, ...]) -> None:
    def program(rank: int) -> Any:
        strategy = ipu.distributed.popdist_strategy.PopDistStrategy()
        data = tf.data.Dataset.range(8).shard(len(rows), rank)
        iterator = ipu.ipu_infeed_queue.IPUIterator(dataset=data)

        @tf.function
        def step(batches: Any) -> Any:
            return next(batches)

        steps = [strategy.run(step, args=[iterator]) for _ in range(2)]
        totals = [int(strategy.reduce("sum", own, axis=None)) for own in steps]
        with pytest.raises(ValueError, match="drop_remainder=True"):
            ipu.ipu_infeed_queue.IPUIterator(data.batch(2))
        return totals

    assert on_all(rows, program) == [[0 + 1, 2 + 3]] * len(rows)


@pytest.mark.filterwarnings("ignore")
def test_variables_are_on_an_ipu_for_programs_and_on_cpus_for_replicas() -> None:
    def program(rank: int) -> Any:
        strategy = ipu.distributed.popdist_strategy.PopDistStrategy()
        with strategy.scope():
            weight = tf.Variable(1.0)
            on_read = tf.Variable(
                1.0, synchronization=tf.VariableSynchronization.ON_READ
            )
            shown = [weight.device, on_read.device]
            optimizer = tf.keras.optimizers.SGD(0.5)
        with tf.device(weight.device):
            double = weight * 2

        inside = []

        def step() -> None:
            inside.append(weight.device)
            optimizer.apply_gradients([(1.0 * weight, weight)])

        strategy.run(step)
        return [*shown, weight.device], inside, double.device, float(weight.numpy())

    job = "/job:localhost/replica:0/task:0/device:"
    ((shown, inside, placed, trained),) = on_all((2,), program)
    assert shown == [f"{job}IPU:0"] * 3
    assert sorted(inside) == [f"{job}CPU:0", f"{job}CPU:1"]
    # 1 - 0.5 * 2, of the two gradients.
    assert (placed, trained) == (f"{job}CPU:0", 0.0)
