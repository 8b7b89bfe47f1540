"""PopDistStrategy and its variables, from popdist.tensorflow, with other names."""

from functools import wraps
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute.distribute_lib import get_update_replica_id

from popdist.tensorflow import PopDistStrategy
from popdist.tensorflow.strategy.variables import (
    IPUMirroredVariable,
    IPUSyncOnReadVariable,
)

from ..keras.model_options import add_to_models
from ..refusals import refused

# The names before release 2.4. Release 2.4 has them, too.
IPUMultiReplicaStrategy = IPUMultiReplicaStrategyV1 = PopDistStrategy

_REASON = "it exchanges by gRPC. Use PopDistStrategy under poprun."
IPUMultiWorkerStrategy = refused("IPUMultiWorkerStrategy", _REASON)
IPUMultiWorkerStrategyV1 = refused("IPUMultiWorkerStrategyV1", _REASON)

_initialize = PopDistStrategy.__init__


@wraps(_initialize)
def _initialize_with_models(strategy: Any, *args: Any, **kwargs: Any) -> Any:
    """Initialize a strategy, and give Keras models the methods that it knows of."""
    _initialize(strategy, *args, **kwargs)
    if strategy.extended.extends_keras:
        add_to_models()


PopDistStrategy.__init__ = _initialize_with_models  # type: ignore[assignment, method-assign]


def _shown_device(variable: Any) -> str:
    """Return the device of a variable, which is /device:IPU:0 outside of replicas.

    Programs for IPUs expect it there. TensorFlow places operations for it on the first
    CPU, where the first part of the variable is. In replicas and updates it is the CPU
    of the replica's own part.
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
