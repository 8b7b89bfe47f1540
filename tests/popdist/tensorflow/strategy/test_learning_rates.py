"""The learning rates of tf_keras's optimizers under PopDistStrategy."""

from typing import Any

import pytest
import tensorflow as tf
import tf_keras

from popdist.tensorflow import PopDistStrategy
from tests.popdist.tensorflow.instances import on_all


class CountedCalls(tf_keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
    """Returns how often it was called before."""

    def __init__(self) -> None:
        self.calls = tf.Variable(0.0, trainable=False)

    def __call__(self, step: Any) -> Any:
        rate = self.calls + 0.0
        self.calls.assign_add(1.0)
        return rate


@pytest.mark.parametrize(
    ("name", "rows"),
    [("SGD", (1, 1)), ("SGD", (2, 2)), ("Adam", (2,)), ("Adam", (2, 2))],
    ids=str,
)
def test_a_schedule_is_called_once_for_each_update_of_a_replica(
    rows: tuple[int, ...], name: str
) -> None:
    def program(rank: int) -> Any:
        strategy = PopDistStrategy()
        with strategy.scope():
            weights = [tf.Variable(0.0), tf.Variable([0.0, 0.0])]
            schedule = CountedCalls()
            optimizer = getattr(tf_keras.optimizers.legacy, name)(schedule)

        def update() -> None:
            ones = [tf.ones_like(weight) / sum(rows) for weight in weights]
            optimizer.apply_gradients(zip(ones, weights, strict=True))

        step = tf.function(lambda: strategy.run(update))
        for _ in range(4):
            step()
        parts = strategy.experimental_local_results(weights[0])
        return float(tf.convert_to_tensor(schedule.calls)), [float(w) for w in parts]

    for (calls, found), local in zip(on_all(rows, program), rows, strict=True):
        assert calls == 4
        # Rates of 0, 1, 2 and 3; of a gradient of 1, Adam makes 1, too.
        assert found == pytest.approx([-6] * local, rel=1e-5)
