"""Dynamic loss scaling of Keras, which all replicas of PopDistStrategy do alike.

A replica whose gradients overflow would otherwise skip a step that the others make.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from popdist.tensorflow.strategy.extending import extend
from popdist.tensorflow.tensors.memory import Tensor


def scale_losses_alike(strategy_class: type) -> None:
    """Let the Kerases that are imported scale losses under this class of strategies."""
    extend(
        "keras.src.optimizers.loss_scale_optimizer",
        "LossScaleOptimizer",
        "check_finite",
        partial(_finite_on_all, strategy_class),
    )
    # Its optimizer looks at the sums of all replicas, but refuses other strategies.
    extend(
        "tf_keras.src.mixed_precision.loss_scale_optimizer",
        "",
        "strategy_supports_loss_scaling",
        lambda original: (
            isinstance(tf.distribute.get_strategy(), strategy_class) or original()
        ),
    )


def _finite_on_all(
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
