"""Instances of a job that use TensorFlow, as forks of the test.

TensorFlow is imported once, and begins to run in the forks only: a process that has run
an operation of it must not be forked.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import numpy as np
import tensorflow as tf
import tf_keras  # so that the forks need not import it

from popdist import session
from popdist.tensorflow import PopDistStrategy
from tests.jobs import environments
from tests.popdist.engine.members import Ended, Me, run


def on_all(
    rows: int | Sequence[int], function: Callable[[int], Any], timeout: float = 280
) -> list[Any]:
    """Return what function(rank) returns on each instance; an error is the test's.

    Args:
        rows: How many instances there are, or how many replicas each has.
    """
    ended = ends_of(rows, function, timeout)
    for instance in ended:
        if instance.error is not None:
            raise instance.error
    assert [instance.code for instance in ended] == [0] * len(ended), ended
    return [instance.value for instance in ended]


def ends_of(
    rows: int | Sequence[int], function: Callable[[int], Any], timeout: float = 280
) -> list[Ended]:
    """Return how function(rank) ends on each instance."""
    counts = (1,) * rows if isinstance(rows, int) else rows
    environs = environments(counts)

    def instance(me: Me) -> Any:
        os.environ.update(environs[me.rank])
        # What the test's own process has found of itself is not so here.
        session.STATE.__dict__.clear()
        session.STATE.__init__()  # type: ignore[misc]
        return function(me.rank)

    return run(len(counts), instance, timeout)


def keras_of(version: int) -> Any:
    """Return Keras 3, or tf_keras for version 2."""
    return tf.keras if version == 3 else tf_keras


def one_weight_model(keras: Any, *more_layers: Any, start: str = "zeros") -> Any:
    """Return a model that multiplies with one weight, before more layers."""
    weight = keras.layers.Dense(1, use_bias=False, kernel_initializer=start)
    return keras.Sequential([keras.layers.Input((1,)), weight, *more_layers])


def train_in_float16(
    keras: Any, samples: Any, accumulated: int = 1
) -> tuple[list[float], float]:
    """Train one weight, from 1 on, and return it after each step, and the loss's scale.

    A step takes an eighth of the mean of the replicas' samples off it.

    Args:
        samples: Those of this instance, of which a replica takes one in a step.
        accumulated: The gradients of how many steps are added up.
    """
    keras.mixed_precision.set_global_policy("mixed_float16")
    with PopDistStrategy().scope():
        wide = keras.layers.Activation("linear", dtype="float32")
        model = one_weight_model(keras, wide, start="ones")
        optimizer = keras.mixed_precision.LossScaleOptimizer(
            keras.optimizers.SGD(0.125), initial_scale=64.0
        )
        if accumulated > 1:
            # A method that tensorflow.python.ipu adds.
            model.set_gradient_accumulation_options(accumulated)
        model.compile(optimizer, "mean_absolute_error", steps_per_execution=accumulated)
    column = np.array(samples, np.float32)[:, None]
    data = tf.data.Dataset.from_tensor_slices((column, -column)).batch(1)
    weights: list[float] = []
    seen = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda *_, **__: weights.append(
            float(model.get_weights()[0].item())
        )
    )
    model.fit(data, verbose=0, shuffle=False, callbacks=[seen])
    is_keras_3 = hasattr(optimizer, "dynamic_scale")
    scale = optimizer.dynamic_scale if is_keras_3 else optimizer.loss_scale
    return weights, float(tf.convert_to_tensor(scale))
