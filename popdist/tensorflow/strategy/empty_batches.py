"""Computations on the empty batch that a replica may have in the last step.

Keras 3 divides by the number of samples, which makes NaN of the statistics, the
gradients and the losses of all replicas. Some operations of TensorFlow return the wrong
shape, raise an error or abort the process. Here they get a row of zeros, and the row is
cut off their results, so its gradients are zeros.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from popdist.tensorflow.tensors.memory import Tensor


def with_a_row(
    strategy_class: type,
    operation: Callable[..., Any],
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Return the results of an operation on a batch that may be empty.

    Pad and slice return the tensor itself, and no copy, if they change nothing.
    """
    # A batch is the first argument.
    batch, *rest = args or (kwargs.pop("input"),)
    shape = tf.TensorShape(getattr(batch, "shape", None))
    if shape.rank is None or shape[0] or not _may_be_empty(strategy_class):
        return operation(batch, *rest, **kwargs)
    rows = tf.shape(batch)[0]
    missing = tf.pad([[0, tf.maximum(1 - rows, 0)]], [[0, shape.rank - 1], [0, 0]])
    # Not Pad, which TensorFlow may fuse with a convolution.
    padded = tf.raw_ops.PadV2(
        input=batch, paddings=missing, constant_values=tf.zeros((), batch.dtype)
    )
    padded.set_shape([None, *shape[1:]])

    def cut(result: Tensor) -> Tensor:
        size = tf.concat([[rows], tf.shape(result)[1:]], 0)
        part = tf.slice(result, tf.zeros_like(size), size)
        part.set_shape([shape[0], *result.shape[1:]])
        return part

    return tf.nest.map_structure(cut, operation(padded, *rest, **kwargs))


def _may_be_empty(strategy_class: type) -> bool:
    """Return whether a replica computes here that may have an empty batch.

    The first local replica always has a row.
    """
    replica = tf.distribute.get_replica_context()
    is_ours = replica is not None and isinstance(replica.strategy, strategy_class)
    return is_ours and replica._replica_id > 0


def moments_of_rows(
    strategy_class: type,
    moments: Callable[..., tuple[Tensor, Tensor]],
    layer: Any,
    inputs: Tensor,
    mask: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return mean and variance of a batch; of an empty one, those up to now."""
    found = moments(layer, inputs, mask)
    is_ours = isinstance(tf.distribute.get_strategy(), strategy_class)
    # Synchronized moments cover the samples of all replicas.
    if inputs.shape[0] or layer.synchronized or not is_ours:
        return found
    kept = layer.moving_mean, layer.moving_variance
    is_empty = tf.equal(tf.size(inputs), 0)
    mean, variance = (
        tf.where(is_empty, tf.cast(old.value, new.dtype), new)
        for old, new in zip(kept, found, strict=True)
    )
    return mean, variance


def loss_of_rows(
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
