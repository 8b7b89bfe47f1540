"""Computations on the empty batch that a replica may have in the last step.

Keras 3 divides by the number of samples, which makes NaN of the statistics, the
gradients and the losses of all replicas. Some operations of TensorFlow return the wrong
shape, raise an error or abort the process. Here they get a row of zeros, and the row is
cut off their results, so its gradients are zeros.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from popdist.tensorflow.extending import extends
from popdist.tensorflow.strategy.extended import is_popdist, uses_popdist
from popdist.tensorflow.tensors.memory import Tensor


@extends(
    "conv2d",
    "conv3d",
    "depthwise_conv2d_native",
    "max_pool",
    "max_pool3d",
    "max_pool_with_argmax",
    "extract_image_patches",
)
def with_a_row(
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
    if shape.rank is None or shape[0] or not _may_be_empty():
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


def _may_be_empty() -> bool:
    """Return whether a replica computes here that may have an empty batch.

    The first local replica always has a row.
    """
    replica = tf.distribute.get_replica_context()
    if replica is None or not is_popdist(replica.strategy):
        return False
    return bool(replica._replica_id > 0)


@extends("BatchNormalization._moments")
def moments_of_rows(
    moments: Callable[..., tuple[Tensor, Tensor]],
    layer: Any,
    inputs: Tensor,
    mask: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return mean and variance of a batch; of an empty one, those up to now."""
    found = moments(layer, inputs, mask)
    # Synchronized moments cover the samples of all replicas.
    if inputs.shape[0] or layer.synchronized or not uses_popdist():
        return found
    kept = layer.moving_mean, layer.moving_variance
    is_empty = tf.equal(tf.size(inputs), 0)
    mean, variance = (
        tf.where(is_empty, tf.cast(old.value, new.dtype), new)
        for old, new in zip(kept, found, strict=True)
    )
    return mean, variance


@extends("reduce_values")
def loss_of_rows(
    reduce_values: Callable[..., Tensor],
    values: Tensor,
    sample_weight: Tensor | None = None,
    reduction: str | None = "sum_over_batch_size",
) -> Tensor:
    """Return the loss of a batch; of one that is known to be empty, 0."""
    loss = reduce_values(values, sample_weight, reduction)
    is_reduced = reduction is not None and reduction != "none"
    if loss.shape == (0,) and is_reduced:
        return tf.reduce_sum(loss) if uses_popdist() else loss
    return loss
