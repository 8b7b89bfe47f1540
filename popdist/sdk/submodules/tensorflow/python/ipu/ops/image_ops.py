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

    The type is that of the images, but float16 for images of uint8.

    Args:
        image: Images of float16, float32 or uint8, with the channels on the last axis.
        channel_offsets: Numbers that are subtracted from the channels.
        channel_scales: Factors of the channels, after that.
        scale: A factor of all channels, before that.
        name: The name of the operation.
    """
    image = tf.convert_to_tensor(image)
    if image.dtype not in (tf.float16, tf.float32, tf.uint8):
        raise TypeError(
            f"The image is of {image.dtype.name}, but must be of float16, float32 or "
            "uint8. Cast it."
        )
    if not image.shape[-1:].is_compatible_with([3]):
        raise ValueError(f"The image has {image.shape[-1]} channels, expected 3.")
    offsets, scales = (
        _of_channels(name, numbers)
        for name, numbers in (("offsets", channel_offsets), ("scales", channel_scales))
    )
    values = (tf.cast(image, tf.float32) * scale - offsets) * scales
    kind = tf.float16 if image.dtype == tf.uint8 else image.dtype
    padding = [[0, 0]] * (image.shape.rank - 1) + [[0, 1]]
    return tf.pad(tf.cast(values, kind), padding, name=name)


def _of_channels(name: str, numbers: Any) -> Any:
    numbers = tf.cast(tf.convert_to_tensor(numbers), tf.float32)
    if not numbers.shape.is_compatible_with([3]):
        raise ValueError(
            f"The channel_{name} must be the same size as the number of image channels "
            f"3, but was {numbers.shape}."
        )
    return numbers
