"""Functions that programs import from Horovod's utilities for TensorFlow."""

import tensorflow as tf


def _executing_eagerly() -> bool:
    """Return whether operations run at once."""
    return bool(tf.executing_eagerly())
