"""Dynamic loss scaling of Keras, which all replicas of PopDistStrategy do alike.

Otherwise a replica with an overflow would skip a step alone.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from popdist.tensorflow.tensors.memory import Tensor


def supports_loss_scaling(strategy_class: type, is_supported: Callable[[], Any]) -> Any:
    """Return whether tf_keras scales losses under the strategy in use.

    Its optimizer looks at the sums of all replicas, but refuses strategies that it does
    not know.
    """
    return isinstance(tf.distribute.get_strategy(), strategy_class) or is_supported()


def finite_on_all(
    strategy_class: type,
    check_finite: Callable[..., Tensor],
    optimizer: Any,
    gradients: Sequence[Any],
) -> Tensor:
    """Return whether the gradients of all replicas are finite."""
    finite = check_finite(optimizer, gradients)
    replica = tf.distribute.get_replica_context()
    if replica is None or not isinstance(replica.strategy, strategy_class):
        return finite
    overflows = tf.cast(tf.logical_not(finite), tf.int32)
    return tf.equal(replica.all_reduce(tf.distribute.ReduceOp.SUM, overflows), 0)
