"""Models of Keras that fit has trained in one instance alone."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from popdist.replicated.lone_training import note_training
from popdist.tensorflow.extending import extends

_ADVICE = (
    "Make the model within `with popdist.tensorflow.PopDistStrategy().scope():`, or "
    "compile it with horovod's DistributedOptimizer."
)


def strategy_of(model: Any) -> Any:
    """Return the strategy of a model of either Keras, or None."""
    return getattr(model, "_distribute_strategy", None) or getattr(
        model, "_distribution_strategy", None
    )


@extends("TensorFlowTrainer.fit", "Model.fit")
def fit_with_note(
    fit: Callable[..., Any], model: Any, *args: Any, **kwargs: Any
) -> Any:
    """Train a model, and note if no strategy of several processes trains it."""
    result = fit(model, *args, **kwargs)
    if not isinstance(
        strategy_of(model),
        tf.distribute.MultiWorkerMirroredStrategy
        | tf.distribute.experimental.ParameterServerStrategy,
    ):
        note_training(_ADVICE)
    return result
