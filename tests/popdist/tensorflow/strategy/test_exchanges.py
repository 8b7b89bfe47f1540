"""The number of exchanges between instances in a training step of Keras."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from popdist.session import STATE
from popdist.tensorflow import PopDistStrategy
from tests.popdist.tensorflow.instances import keras_of, on_all

STEPS = 4


def exchanges_of_steps(keras: Any, is_length_known: bool) -> list[int]:
    """Return how many calls the engine carries out in each step but the first."""
    count = [0]
    with PopDistStrategy().scope():
        model = keras.Sequential(
            [
                keras.layers.Input((2,)),
                keras.layers.Dense(3),
                # Replicas write its statistics, which become the mean of all.
                keras.layers.BatchNormalization(),
                keras.layers.Dense(1),
            ]
        )
        model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae", "mape"])
    group = STATE.group("tensorflow", STATE.job.members)
    group.set_trace(lambda *_: count.__setitem__(0, count[0] + 1))
    rows = 2 * STEPS * STATE.job.instance.num_local_replicas
    samples = np.random.default_rng(1).random((rows, 2), np.float32)
    data = tf.data.Dataset.from_tensor_slices((samples, samples[:, :1])).batch(2)
    if not is_length_known:
        data = data.filter(lambda *_: True)
    totals: list[int] = []
    recorder = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda *_, **__: totals.append(count[0])
    )
    model.fit(data, verbose=0, callbacks=[recorder])
    group.set_trace(None)
    assert len(totals) == STEPS
    return np.diff(totals).tolist()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("keras_version", "rows"), [(2, (2, 1)), (3, (1, 1))], ids=str)
def test_a_step_has_one_exchange_for_gradients_and_one_for_all_else(
    keras_version: int, rows: tuple[int, ...]
) -> None:
    def program(rank: int) -> Any:
        keras = keras_of(keras_version)
        return [exchanges_of_steps(keras, known) for known in (True, False)]

    # Where the length is unknown, instances agree that all of them have data.
    assert on_all(rows, program) == [[[2] * (STEPS - 1), [3] * (STEPS - 1)]] * len(rows)
