"""Models of Keras that fit has trained in one instance alone."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from popdist.replicated.lone_training import note_training
from popdist.tensorflow.extending import extend

_ADVICE = (
    "Make the model within `with popdist.tensorflow.PopDistStrategy().scope():`, or "
    "compile it with horovod's DistributedOptimizer."
)


def watch_fit() -> None:
    """Note from now on if either Keras trains a model that other instances do not."""
    extend("TensorFlowTrainer.fit", _noted)
    extend("Model.fit", _noted)


def strategy_of(model: Any) -> Any:
    """Return the strategy of a model of either Keras, or None."""
    return getattr(model, "_distribute_strategy", None) or getattr(
        model, "_distribution_strategy", None
    )


def _noted(fit: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    result = fit(model, *args, **kwargs)
    if not isinstance(
        strategy_of(model),
        tf.distribute.MultiWorkerMirroredStrategy
        | tf.distribute.experimental.ParameterServerStrategy,
    ):
        note_training(_ADVICE)
    return result
