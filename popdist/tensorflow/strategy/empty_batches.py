"""What Keras 3 computes of the empty batch that a replica may have in the last step.

It divides by the number of samples, which makes NaN of the statistics, the gradients
and the losses of all replicas.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import tensorflow as tf

from popdist.tensorflow.strategy.extending import extend
from popdist.tensorflow.tensors.memory import Tensor


def allow_empty_batches(strategy_class: type) -> None:
    """Let Keras 3 compute numbers of empty batches under this class of strategies."""
    extend(
        "keras.src.layers.normalization.batch_normalization",
        "BatchNormalization",
        "_moments",
        partial(_moments, strategy_class),
    )
    extend(
        "keras.src.losses.loss",
        "",
        "reduce_values",
        partial(_reduced, strategy_class),
    )


def _moments(
    strategy_class: type,
    moments: Callable[..., tuple[Tensor, Tensor]],
    layer: Any,
    inputs: Tensor,
    mask: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return mean and variance of a batch; of an empty one, those up to now."""
    found = moments(layer, inputs, mask)
    is_ours = isinstance(tf.distribute.get_strategy(), strategy_class)
    # What is synchronized is that of the samples of all replicas.
    if inputs.shape[0] or layer.synchronized or not is_ours:
        return found
    kept = layer.moving_mean, layer.moving_variance
    is_empty = tf.equal(tf.size(inputs), 0)
    mean, variance = (
        tf.where(is_empty, tf.cast(old.value, new.dtype), new)
        for old, new in zip(kept, found, strict=True)
    )
    return mean, variance


def _reduced(
    strategy_class: type,
    reduce_values: Callable[..., Tensor],
    values: Tensor,
    sample_weight: Tensor | None = None,
    reduction: str | None = "sum_over_batch_size",
) -> Tensor:
    """Return the loss of a batch; of one that is known to be empty, 0."""
    loss = reduce_values(values, sample_weight, reduction)
    is_reduced = reduction is not None and reduction != "none"
    if loss.shape == (0,) and is_reduced:
        strategy = tf.distribute.get_strategy()
        return tf.reduce_sum(loss) if isinstance(strategy, strategy_class) else loss
    return loss
