"""Logs of Keras's steps are those of all replicas, and so are what callbacks decide."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from popdist.errors import MismatchError
from popdist.session import STATE
from popdist.tensorflow import PopDistStrategy
from tests.popdist.tensorflow.instances import keras_of, on_all

ALIKE = (
    "Callbacks have to decide alike on all instances: by the logs, which cover all "
    "replicas, or by a value that popdist.tensorflow.broadcast shares."
)


def batches(steps: int, size: int = 2, last: int | None = None) -> tf.data.Dataset:
    """Return batches, in which replica r's samples of step s are 8 * s + r.

    Args:
        size: The number of samples in a batch.
        last: How many local replicas have a batch in the last step; None for all.
    """
    place = STATE.job.instance
    local = range(place.num_local_replicas)
    first = place.replica_index_offset
    values = [8.0 * s + first + r for s in range(steps) for r in local]
    if last is not None:
        values = values[: len(values) - len(local) + last]
    column = np.repeat(np.array(values, np.float32), size)[:, None]
    data = tf.data.Dataset.from_tensor_slices((column, column))
    return data.batch(size, drop_remainder=last is None)


def raw_model(
    keras: Any, log: Callable[[Any, Any], Any], name: str = "raw", **options: Any
) -> Any:
    """Return a model with one weight whose training step returns a value as its log.

    Args:
        log: Returns the value, from the replica's samples and the optimizer.
        name: The value's name in the logs.
    """

    class Raw(keras.Model):  # type: ignore[misc,name-defined]
        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
            gradients = tape.gradient(loss, self.trainable_variables)
            pairs = zip(gradients, self.trainable_variables, strict=True)
            self.optimizer.apply_gradients(pairs)
            return {name: log(y, self.optimizer), "count": tf.constant(1)}

        def test_step(self, data: Any) -> Any:
            return {"largest": tf.reduce_max(data[1])}

    with PopDistStrategy().scope():
        inputs = keras.layers.Input((1,))
        dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        model = Raw(inputs, dense(inputs))
        model.compile(keras.optimizers.SGD(1e-4), "mse", **options)
    return model


def recorded(keras: Any, found: list[Any]) -> Any:
    """Return a callback that adds the logs of each batch to a list."""

    class Recorder(keras.callbacks.Callback):  # type: ignore[misc,name-defined]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            found.append({key: float(value) for key, value in logs.items()})

    return Recorder()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("keras_version", "rows"), [(2, (4,)), (3, (1, 1, 2))], ids=str
)
def test_logs_are_those_that_mirrored_strategy_has_with_as_many_replicas(
    keras_version: int, rows: tuple[int, ...]
) -> None:
    def program(rank: int) -> Any:
        keras = keras_of(keras_version)
        logs: list[Any] = []
        with PopDistStrategy().scope():
            dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
            usual = keras.Sequential([keras.layers.Input((1,)), dense])
            usual.compile(keras.optimizers.SGD(0.0), "mae")
        usual.fit(batches(3), verbose=0, callbacks=[recorded(keras, logs)])
        raw = raw_model(keras, lambda y, _: tf.reduce_mean(y))
        callbacks = [recorded(keras, logs)]
        history = raw.fit(batches(3), verbose=0, callbacks=callbacks).history
        return logs, history, raw.evaluate(batches(3), verbose=0, return_dict=True)

    # Keras 3 returns the mean of the replicas' logs, tf_keras the sum; neither one
    # changes metrics.
    factor = {2: 4, 3: 1}[keras_version]
    raw_logs = [
        {"raw": factor * value, "count": factor * 1.0} for value in (1.5, 9.5, 17.5)
    ]
    logs = [{"loss": 1.5}, {"loss": 5.5}, {"loss": 9.5}, *raw_logs]
    history = {"raw": [factor * 17.5], "count": [factor * 1.0]}
    found = on_all(rows, program)
    assert found == [(logs, history, {"largest": factor * 17.5})] * len(rows)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "options", [{"steps_per_execution": 2}, {"run_eagerly": True}], ids=str
)
def test_logs_are_those_of_all_replicas_however_keras_makes_its_steps(
    options: dict[str, Any],
) -> None:
    def program(rank: int) -> Any:
        logs: list[Any] = []
        model = raw_model(tf.keras, lambda y, _: tf.reduce_mean(y), **options)
        model.fit(batches(4), verbose=0, callbacks=[recorded(tf.keras, logs)])
        return [log["raw"] for log in logs]

    logs = [1.0, 9.0, 17.0, 25.0]
    expected = logs[1::2] if "steps_per_execution" in options else logs
    assert on_all((1, 2), program) == [expected] * 2


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("keras_version", "log"), [(2, 18.0), (3, 9.0)])
def test_a_replica_without_samples_has_no_part_in_the_logs(
    keras_version: int, log: float
) -> None:
    def program(rank: int) -> Any:
        # Its mean of no samples is NaN.
        model = raw_model(keras_of(keras_version), lambda y, _: tf.reduce_mean(y))
        history = model.fit(batches(2, size=1, last=1), verbose=0).history
        return history["raw"], bool(np.isfinite(model.get_weights()[0]).all())

    # Replica 0 has the samples 8, and replica 2 has 10.
    assert on_all((2, 1), program) == [([log], True)] * 2


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("keras_version", [2, 3])
def test_callbacks_decide_alike_by_what_each_replica_computes(
    keras_version: int,
) -> None:
    def program(rank: int) -> Any:
        keras = keras_of(keras_version)
        found = []

        def drawn(_: Any, optimizer: Any) -> Any:
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            step = tf.cast(optimizer.iterations, tf.int32)
            return tf.random.stateless_uniform((), [step, replica])

        def diverging(y: Any, optimizer: Any) -> Any:
            is_last = tf.equal(tf.reduce_min(y), 8.0 + 3)
            return tf.where(is_last, np.nan, 1.0)

        for log, callback in (
            (drawn, keras.callbacks.ReduceLROnPlateau("loss", 0.5, 1)),
            (drawn, keras.callbacks.EarlyStopping("loss", patience=1)),
            (diverging, keras.callbacks.TerminateOnNaN()),
        ):
            model = raw_model(keras, log, "loss")
            history = model.fit(
                batches(3), epochs=4, verbose=0, callbacks=[callback]
            ).history
            rate = float(tf.convert_to_tensor(model.optimizer.learning_rate))
            steps = int(tf.convert_to_tensor(model.optimizer.iterations))
            found.append((history, rate, steps, model.get_weights()[0].tolist()))
        return found

    first, second = on_all((2, 2), program)
    assert str(first) == str(second)
    plateau, early, nan = first
    assert plateau[1] < 1e-4
    assert early[2] < 12
    # The second step is the last one.
    assert nan[2] == 2


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("keras_version", [2, 3])
def test_instances_that_decide_differently_are_told_so_in_a_sentence(
    keras_version: int,
) -> None:
    def program(rank: int) -> Any:
        keras = keras_of(keras_version)

        class Decision(keras.callbacks.Callback):  # type: ignore[misc,name-defined]
            def __init__(self, decide: Callable[[Any], None], batch: int | None = None):
                super().__init__()
                self._decide = decide
                self._batch = batch

            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                if batch == self._batch:
                    self._decide(self.model)

            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                if self._batch is None:
                    self._decide(self.model)

        def stop(model: Any) -> None:
            model.stop_training = rank == 1

        def slow_down(model: Any) -> None:
            model.optimizer.learning_rate = [0.5, 0.25][rank]

        said = []
        for epochs, callbacks in (
            (2 + rank, []),
            (2, [Decision(stop)]),
            (2, [Decision(slow_down)]),
            (2, [Decision(stop, batch=1)]),
        ):
            model = raw_model(keras, lambda y, _: tf.reduce_mean(y))
            with pytest.raises((ValueError, MismatchError)) as error:
                model.fit(batches(3), epochs=epochs, verbose=0, callbacks=callbacks)
            said.append(str(error.value))
        return said

    first, second = on_all((2, 1), program)
    assert first == second
    epochs, stop, rate, batch = first
    assert epochs == (
        "epochs of fit is [2, 3], from instance 0 on, but must be the same on all "
        "instances."
    )
    assert stop == (
        "The instances would train apart: stop_training is [False, True], from "
        f"instance 0 on. {ALIKE}"
    )
    assert rate == (
        "The instances would train apart: the learning rate is [0.5, 0.25], from "
        f"instance 0 on. {ALIKE}"
    )
    assert batch.startswith(
        "The instances do not train alike: one has stopped and another makes a step, "
        f"or their models or data differ. {ALIKE} Tensor layouts did not match on all "
        "instances: instance "
    )
    # Whichever of them came first is named first.
    assert "instance 0 came to all_reduce" in batch


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("keras_version", [3, 2])
def test_fit_takes_a_list_of_callbacks_that_the_program_has_made(
    keras_version: int,
) -> None:
    def program(_: int) -> list[int]:
        keras = keras_of(keras_version)
        model = raw_model(keras, lambda y, _: tf.reduce_mean(y))
        history = keras.callbacks.History()
        callbacks = keras.callbacks.CallbackList([history], model=model)
        model.fit(batches(2), epochs=2, verbose=0, callbacks=callbacks)
        return list(history.epoch)

    assert on_all(2, program) == [[0, 1], [0, 1]]
