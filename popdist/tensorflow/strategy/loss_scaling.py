"""Dynamic loss scaling of Keras, which all replicas of PopDistStrategy do alike.

Otherwise a replica with an overflow would skip a step alone.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from popdist.tensorflow.extending import extends
from popdist.tensorflow.strategy.extended import is_popdist, uses_popdist
from popdist.tensorflow.tensors.memory import Tensor


@extends("strategy_supports_loss_scaling")
def supports_loss_scaling(is_supported: Callable[[], Any]) -> Any:
    """Return whether tf_keras scales losses under the strategy in use.

    Its optimizer looks at the sums of all replicas, but refuses strategies that it does
    not know.
    """
    return uses_popdist() or is_supported()


@extends("LossScaleOptimizer.check_finite")
def finite_on_all(
    check_finite: Callable[..., Tensor], optimizer: Any, gradients: Sequence[Any]
) -> Tensor:
    """Return whether the gradients of all replicas are finite."""
    finite = check_finite(optimizer, gradients)
    replica = tf.distribute.get_replica_context()
    if replica is None or not is_popdist(replica.strategy):
        return finite
    overflows = tf.cast(tf.logical_not(finite), tf.int32)
    return tf.equal(replica.all_reduce(tf.distribute.ReduceOp.SUM, overflows), 0)
