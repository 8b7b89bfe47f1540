"""Normalisation of images."""

from typing import Any

import tensorflow as tf


def normalise_image(
    image: Any,
    channel_offsets: Any,
    channel_scales: Any,
    scale: float = 1,
    name: str | None = None,
) -> Any:
    """Return images of three channels with a fourth one of 0, offset and scaled.

    Args:
        image: Images, with the channels on the last axis.
        channel_offsets: Numbers that are subtracted from the channels.
        channel_scales: Factors of the channels, after that.
        scale: A factor of all channels, before that.
        name: The name of the operation.
    """
    offsets = tf.convert_to_tensor(channel_offsets)
    values = tf.cast(image, offsets.dtype) * tf.cast(scale, offsets.dtype)
    values = (values - offsets) * tf.cast(channel_scales, offsets.dtype)
    padding = [[0, 0]] * (values.shape.rank - 1) + [[0, 1]]
    return tf.pad(values, padding, name=name)
