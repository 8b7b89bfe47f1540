"""Orders of operations."""

from typing import Any

import tensorflow as tf


def barrier(
    tensors: Any, insert_barrier_for_gradients: bool = False, name: str | None = None
) -> Any:
    """Return tensors, each only once all of them are computed.

    Args:
        tensors: The tensors.
        insert_barrier_for_gradients: Whether an IPU waits for their gradients, too.
        name: The name of the operation.
    """
    return tf.tuple(tensors, name=name)
