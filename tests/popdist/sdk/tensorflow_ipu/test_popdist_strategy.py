"""The options for IPUs of Keras models under PopDistStrategy."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python import ipu

from tests.popdist.tensorflow.instances import TIMEOUT, keras_of, on_all

pytestmark = TIMEOUT


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
            layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
            model = keras.Sequential([keras.layers.Input((1,)), layer])
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
