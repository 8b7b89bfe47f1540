"""Activations and other operations that Graphcore's TensorFlow has by its own name."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from .functional_ops import outlined_function

Tensor = Any
Function = Callable[..., Any]

nce_loss = tf.nn.nce_loss
sampled_softmax_loss = tf.nn.sampled_softmax_loss


def gelu(x: Tensor, approximate: bool = True, name: str | None = None) -> Tensor:
    """Return the Gaussian error linear unit of a tensor, by its usual approximation."""
    return tf.nn.gelu(x, approximate, name)


def hard_sigmoid(x: Tensor, name: str | None = None) -> Tensor:
    """Return 0.2 x + 0.5, clipped to the range from 0 to 1."""
    return tf.clip_by_value(0.2 * x + 0.5, 0, 1, name)


def swish(x: Tensor, name: str | None = None) -> Tensor:
    """Return x times its sigmoid."""
    return tf.identity(tf.nn.swish(x), name)


silu = swish


def softmax(x: Tensor, stable: bool = False, name: str | None = None) -> Tensor:
    """Return the softmax of a tensor; it is always the stable one."""
    return tf.nn.softmax(x, name=name)


def ctc_loss_v2(
    labels: Tensor,
    logits: Tensor,
    label_length: Tensor,
    logit_length: Tensor,
    blank_index: int,
    out_dtype: Any = None,
    name: str | None = None,
) -> Tensor:
    """Return the loss of connectionist temporal classification of each sequence."""
    losses = tf.nn.ctc_loss(
        labels,
        tf.cast(logits, tf.float32),
        label_length,
        logit_length,
        blank_index=blank_index,
        name=name,
    )
    return tf.cast(losses, out_dtype or logits.dtype)


def multi_conv(
    func: Function | None = None, options: dict[str, Any] | None = None
) -> Any:
    """Decorate a function; an IPU may compute its convolutions at the same time.

    Args:
        func: The function; None if the decorator has options.
        options: Options of an IPU's library, which change no result.
    """
    if not isinstance(options or {}, dict):
        raise TypeError(f"multi_conv has the options {options!r}: no dictionary.")

    return outlined_function(func)
