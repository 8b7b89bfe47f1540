"""Keras's dynamic loss scaling under PopDistStrategy."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from popdist.tensorflow import PopDistStrategy
from tests.popdist.tensorflow.instances import TIMEOUT, keras_of, on_all

pytestmark = TIMEOUT


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("keras_version", [2, 3])
@pytest.mark.parametrize("rows", [(1, 1), (2, 2)])
def test_all_replicas_skip_the_step_in_which_gradients_of_one_overflow(
    keras_version: int, rows: tuple[int, ...]
) -> None:
    def program(rank: int) -> Any:
        keras = keras_of(keras_version)
        keras.mixed_precision.set_global_policy("mixed_float16")
        with PopDistStrategy().scope():
            model = keras.Sequential(
                [
                    keras.layers.Input((1,)),
                    keras.layers.Dense(1, kernel_initializer="ones", use_bias=False),
                    keras.layers.Activation("linear", dtype="float32"),
                ]
            )
            optimizer = keras.mixed_precision.LossScaleOptimizer(
                keras.optimizers.SGD(0.125), initial_scale=64.0
            )
            model.compile(optimizer, "mean_absolute_error")
        # The last replica of the job overflows in its second step.
        local = rows[rank]
        samples = np.ones((3 * local, 1), np.float32)
        if rank == len(rows) - 1:
            samples[2 * local - 1] = 60000
        data = tf.data.Dataset.from_tensor_slices((samples, -samples)).batch(1)
        weights: list[float] = []
        seen = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda *_, **__: weights.append(
                float(model.get_weights()[0].item())
            )
        )
        model.fit(data, verbose=0, shuffle=False, callbacks=[seen])
        scale = optimizer.dynamic_scale if keras_version == 3 else optimizer.loss_scale
        return weights, float(tf.convert_to_tensor(scale))

    # Each step that is made takes 0.125 off; the one that is skipped halves the scale.
    assert on_all(rows, program) == [([0.875, 0.875, 0.75], 32.0)] * 2
