"""PopDistStrategy and its variables, which are those of popdist.tensorflow."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute.distribute_lib import get_update_replica_id

from popdist.tensorflow import PopDistStrategy
from popdist.tensorflow.strategy.extending import extend
from popdist.tensorflow.strategy.variables import (
    IPUMirroredVariable,
    IPUSyncOnReadVariable,
)

from ..keras.model_options import add_to_models

__all__ = ["IPUMirroredVariable", "IPUSyncOnReadVariable", "PopDistStrategy"]


def _initialize(
    initialize: Callable[..., None], strategy: Any, *args: Any, **kwargs: Any
) -> None:
    """Initialize a strategy, and give Keras models the methods that it knows of."""
    initialize(strategy, *args, **kwargs)
    if strategy.extended.extends_keras:
        add_to_models()


extend(PopDistStrategy.__module__, "PopDistStrategy", "__init__", _initialize)


def _shown_device(variable: Any) -> str:
    """Return the device of a variable, which is /device:IPU:0 outside of replicas.

    Programs for IPUs expect it there. TensorFlow places operations for it on the first
    CPU, where the first part of the variable is. In replicas and updates, where each
    has a part of its own, it is that part's CPU.
    """
    replica = tf.distribute.get_replica_context()
    is_inside = replica is not None and replica.strategy is variable.distribute_strategy
    part = variable._get_on_device_or_primary()
    if (
        is_inside
        or get_update_replica_id() is not None
        or part is not variable._primary
    ):
        return str(part.device)
    return str(part.device).replace("device:CPU:", "device:IPU:")


for _class in (IPUMirroredVariable, IPUSyncOnReadVariable):
    _class.device = property(_shown_device)
