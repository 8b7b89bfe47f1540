"""horovod.keras and horovod.tensorflow.keras: callbacks, training and saved models."""

import pickle
import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.popdist.engine.members import error_of
from tests.popdist.sdk.horovod.tensorflow.ranks import results

# isort: split
import horovod.keras
import horovod.tensorflow.keras as hvd

RANDOM = np.random.default_rng(1)
INPUTS = RANDOM.random((16, 4), np.float32)
TARGETS = INPUTS @ np.arange(4, dtype=np.float32)[:, np.newaxis]


def model_of(seed: int, optimizer: Any) -> Any:
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(3, "relu"), keras.layers.Dense(1)]
    )
    model.compile(optimizer, "mse", metrics=["mae"])
    return model


def test_ranks_that_share_a_batch_train_as_one_process_that_has_it() -> None:
    def rank(me: int) -> list[Any]:
        model = model_of(0, hvd.DistributedOptimizer(keras.optimizers.Adam(0.1)))
        # Of each batch of 4, rank 0 has the first half.
        part = np.arange(16).reshape(4, 2, 2)[:, me].ravel()
        model.fit(
            INPUTS[part],
            TARGETS[part],
            batch_size=2,
            shuffle=False,
            verbose=0,
            epochs=2,
        )
        return model.get_weights()

    def alone() -> list[Any]:
        model = model_of(0, keras.optimizers.Adam(0.1))
        model.fit(INPUTS, TARGETS, batch_size=4, shuffle=False, verbose=0, epochs=2)
        return model.get_weights()

    first, second = results(2, rank)
    (expected,) = results(1, lambda _: alone())
    for one, other, whole in zip(first, second, expected, strict=True):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_allclose(one, whole, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("callbacks", [horovod.keras.callbacks, hvd.callbacks])
def test_callbacks_can_be_pickled(callbacks: Any) -> None:
    for name in (
        "BroadcastGlobalVariablesCallback",
        "LearningRateScheduleCallback",
        "LearningRateWarmupCallback",
        "MetricAverageCallback",
    ):
        callback = getattr(callbacks, name)

        assert pickle.loads(pickle.dumps(callback)) is callback
        assert callback.__module__ == callbacks.__name__


def test_callbacks_share_weights_and_metrics_and_warm_up() -> None:
    def rank(me: int) -> list[Any]:
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.5))
        model = model_of(me, optimizer)
        rates: list[float] = []

        class Rates(keras.callbacks.Callback):
            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                rates.append(round(float(optimizer.learning_rate), 6))

        history = model.fit(
            INPUTS[me::2],
            TARGETS[me::2],
            batch_size=4,
            epochs=3,
            verbose=0,
            callbacks=[
                hvd.callbacks.BroadcastGlobalVariablesCallback(0),
                hvd.callbacks.MetricAverageCallback(),
                hvd.callbacks.LearningRateWarmupCallback(
                    0.2, warmup_epochs=2, momentum_correction=False, verbose=me
                ),
                Rates(),
            ],
        )
        return [history.history, rates, [w.tolist() for w in model.get_weights()]]

    first, second = results(2, rank)
    assert first == second
    history, rates, _ = first
    assert rates == [0.125, 0.15, 0.175, 0.2, 0.2, 0.2]
    assert sorted(history) == ["loss", "lr", "mae"]
    assert [round(rate, 6) for rate in history["lr"]] == [0.15, 0.2, 0.2]


def test_variables_of_one_rank_alone_are_not_broadcast() -> None:
    def rank(me: int) -> list[float]:
        constant = keras.initializers.Constant(me)
        layers = [keras.layers.Dense(1, kernel_initializer=constant) for _ in range(3)]
        model = keras.Sequential([keras.Input((4,)), *layers])
        model.compile(loss="mse", optimizer=keras.optimizers.SGD(0.0))
        broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(
            1, local_variables=layers[0].kernel
        )
        broadcast.register_local_var(layers[1].kernel)
        model.fit(INPUTS, TARGETS, verbose=0, callbacks=[broadcast])
        return [float(layer.kernel.numpy()[0, 0]) for layer in layers]

    assert results(2, rank) == [[0.0, 0.0, 1.0], [1.0, 1.0, 1.0]]


def test_a_schedule_multiplies_in_its_epochs_and_names_what_it_lacks() -> None:
    def rate_after(epochs: int, **options: Any) -> float:
        model = model_of(0, keras.optimizers.SGD(1.0))
        schedule = horovod.keras.callbacks.LearningRateScheduleCallback(0.5, **options)
        model.fit(INPUTS, TARGETS, epochs=epochs, verbose=0, callbacks=[schedule])
        return float(model.optimizer.learning_rate)

    def rank(_: int) -> list[Any]:
        return [
            rate_after(3, multiplier=0.5),
            rate_after(3, multiplier=lambda epoch: epoch + 1, end_epoch=2),
            rate_after(1, multiplier=0.5, start_epoch=1),
        ]

    assert results(1, rank) == [[0.125, 1.0, 1.0]]
    with pytest.raises(ValueError, match="initial_lr is None, but the learning rate"):
        hvd.callbacks.LearningRateScheduleCallback(None, 0.5)
    endless = hvd.callbacks.LearningRateWarmupCallback(0.5)
    endless.set_params({"steps": None})
    with pytest.raises(ValueError, match="Give steps_per_epoch"):
        endless.on_train_begin()


def test_a_constant_momentum_that_cannot_be_corrected_is_warned_of() -> None:
    def rank(_: int) -> list[str]:
        model = model_of(0, keras.optimizers.SGD(1.0, momentum=0.9))
        schedule = hvd.callbacks.LearningRateScheduleCallback(0.5, 0.5)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.fit(INPUTS, TARGETS, verbose=0, callbacks=[schedule])
        return [str(one.message) for one in caught]

    (texts,) = results(1, rank)
    assert [text[:29] for text in texts] == ["The momentum is not corrected"]


# Keras's own, when it saves a model.
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy")
def test_a_saved_model_goes_on_with_and_without_horovod(tmp_path: Path) -> None:
    def rank(me: int) -> list[Any]:
        path = str(tmp_path / f"{me}.keras")
        model = model_of(0, hvd.DistributedOptimizer(keras.optimizers.Adam(0.1)))
        model.fit(INPUTS, TARGETS, verbose=0)
        model.save(path)
        again, plain = hvd.load_model(path), keras.models.load_model(path)
        for one, other in zip(
            again.optimizer.variables, model.optimizer.variables, strict=True
        ):
            np.testing.assert_array_equal(one.numpy(), other.numpy())
        part = slice(me, None, 2)
        again.fit(INPUTS[part], TARGETS[part], verbose=0, shuffle=False)
        weights = [weight.tolist() for weight in again.get_weights()]
        return [weights, type(plain.optimizer) is keras.optimizers.Adam]

    first, second = results(2, rank)
    assert first == second
    assert first[1]


def test_values_are_reduced_gathered_and_broadcast() -> None:
    def rank(me: int) -> list[Any]:
        found = [
            hvd.allreduce([1.0, 2.0 * me]),
            hvd.allreduce(me, average=False),
            hvd.allgather([me]),
            horovod.keras.broadcast([me], 1),
            horovod.keras.reducescatter([1.0, 2.0]),
        ]
        refusal = error_of(lambda: hvd.broadcast_global_variables(0))
        names = hvd.size(), hvd.rank() == me, hvd.Average.name, hvd.gloo_built()
        return [
            tf.nest.map_structure(lambda x: x.numpy().tolist(), found),
            refusal[0],
            names,
        ]

    for me, found in enumerate(results(2, rank)):
        assert found == [
            [[1.0, 1.0], 1, [0, 1], [1], [[1.0], [2.0]][me]],
            "RuntimeError",
            (2, True, "Average", True),
        ]
