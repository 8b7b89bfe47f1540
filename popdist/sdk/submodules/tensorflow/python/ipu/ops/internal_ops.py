"""Operations that print and lay out tensors."""

from typing import Any

import tensorflow as tf

from ..refusals import refused


def print_tensor(input: Any, name: str = "") -> Any:
    """Return the operation that prints a tensor on stderr."""
    return tf.print(name, input)


def remap(x: Any, name: str | None = None) -> Any:
    """Return a tensor, which an IPU lays out anew."""
    return tf.identity(x, name)


remap_deduce = remap

_REASON = "it exists on a chip only, between the stages of a pipeline."
fifo = refused("fifo", _REASON)
get_current_iteration_counter = refused("get_current_iteration_counter", _REASON)
