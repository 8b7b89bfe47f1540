"""Histograms of tensors."""

from typing import Any

import tensorflow as tf


def fixed_width_bins(inputs: Any, n_bins: int) -> Any:
    """Return n_bins levels, evenly from the smallest of some values to the largest."""
    return tf.linspace(tf.reduce_min(inputs), tf.reduce_max(inputs), n_bins)


def histogram_normalize(hist: Any) -> Any:
    """Return a histogram divided by its sum."""
    return hist / tf.reduce_sum(hist, axis=0)


def histogram(inputs: Any, levels: Any, absolute_of_input: bool = False) -> Any:
    """Return how many values are below, between and above some levels, in float32.

    Args:
        inputs: A vector of float16 or float32.
        levels: Such a vector, in ascending order; a value that equals a level is above
            it.
        absolute_of_input: Whether to count the absolute values.
    """
    inputs, levels = (_checked("histogram", value) for value in (inputs, levels))
    values = tf.cast(tf.abs(inputs) if absolute_of_input else inputs, tf.float32)
    bins = tf.searchsorted(tf.cast(levels, tf.float32), values, side="right")
    ones = tf.ones_like(values)
    return tf.math.unsorted_segment_sum(ones, bins, tf.size(levels) + 1)


def histogram_update(
    hist: Any, inputs: Any, levels: Any, absolute_of_input: bool = False
) -> Any:
    """Return a histogram with further values; as `histogram`."""
    hist = tf.convert_to_tensor(hist)
    if hist.dtype != tf.float32:
        raise ValueError("hist must be of float32 type")
    if hist.shape.rank != 1:
        raise ValueError("histogram_update expects rank-1 tensor inputs.")
    inputs, levels = (_checked("histogram_update", value) for value in (inputs, levels))
    if not hist.shape.is_compatible_with([(levels.shape[0] or 0) + 1]):
        raise ValueError(
            "hist and levels shapes are incompatible. For n levels, hist must have n+1 "
            "elements."
        )
    return hist + histogram(inputs, levels, absolute_of_input)


def _checked(name: str, value: Any) -> Any:
    """Return a vector of numbers as a tensor.

    Raises:
        ValueError: It has another type or rank.
    """
    value = tf.convert_to_tensor(value)
    if value.dtype not in (tf.float16, tf.float32):
        raise ValueError(
            f"Only float16 and float32 types are supported for {name}, not "
            f"{value.dtype.name}. Cast it."
        )
    if value.shape.rank != 1:
        raise ValueError(f"{name} expects rank-1 tensor inputs.")
    return value
