"""Dropout, by TensorFlow's random numbers."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def dropout(
    x: Any,
    rate: float = 0.5,
    noise_shape: Sequence[int] | None = None,
    seed: Any = None,
    name: str | None = None,
    **kwargs: Any,
) -> Any:
    """Return a tensor with some elements set to 0, and the others scaled up.

    Args:
        x: The tensor.
        rate: How probable a 0 is.
        noise_shape: Elements share their choice along the axes of length 1.
        seed: Two numbers that choose the same elements each time.
        name: The name of the operation.
        kwargs: How an IPU changes the seed.
    """
    if not 0 <= rate < 1:
        raise ValueError(f"The rate must be in the range [0, 1), but was {rate}")
    if seed is None:
        return tf.nn.dropout(x, rate, noise_shape, name=name)
    seed = tf.convert_to_tensor(seed)
    if seed.shape != [2]:
        raise ValueError(
            f"Expected the seed to have a shape [2], but got {seed.shape}."
        )
    return tf.nn.experimental.stateless_dropout(x, rate, seed, noise_shape, name=name)
