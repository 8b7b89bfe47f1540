"""Variables that replicas write in a run, and sums of their values."""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from popdist.tensorflow.tensors.memory import Tensor


@tf.autograph.experimental.do_not_convert
def tensors_in(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """Return the tensors among the arguments of a replica."""
    flat = tf.nest.flatten((args, kwargs), expand_composites=True)
    return [each for each in flat if isinstance(each, tf.Tensor)]


@tf.autograph.experimental.do_not_convert
def widened(tensor: Tensor) -> Tensor:
    """Return a tensor in a dtype for sums, which may exceed the largest half."""
    is_half = tensor.dtype in (tf.float16, tf.bfloat16)
    return tf.cast(tensor, tf.float32) if is_half else tensor


@tf.autograph.experimental.do_not_convert
def bytes_of_tensor(tensor: Tensor) -> Tensor:
    """Return the bytes of a tensor as numbers, which sums with zeros do not change."""
    is_bool = tensor.dtype is tf.bool
    values = tf.cast(tensor, tf.uint8) if is_bool else tf.bitcast(tensor, tf.uint8)
    return tf.cast(values, tf.float32)


@tf.autograph.experimental.do_not_convert
def tensor_of_bytes(values: Tensor, like: Any) -> Tensor:
    """Return the tensor of bytes_of_tensor(), with another one's dtype and shape."""
    values = tf.cast(values, tf.uint8)
    if like.dtype is tf.bool:
        return tf.cast(values, tf.bool)
    return tf.ensure_shape(tf.bitcast(values, like.dtype), like.shape)
