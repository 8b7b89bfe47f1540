"""The operations that optimizers of programs give their gradients to."""

from typing import Any

import tensorflow as tf
from tensorflow.python.ipu.ops.replication_ops import replica_count, replication_index
from tensorflow.python.ipu.refusals import refused

__all__ = [
    "ipu_replication_normalise",
    "ipu_stateful_gradient_accumulate",
    "replication_index",
]


def ipu_replication_normalise(input: Any, name: str | None = None) -> Any:
    """Return a tensor divided by the number of replicas."""
    return tf.divide(input, tf.cast(replica_count(), input.dtype), name=name)


ipu_stateful_gradient_accumulate = refused(
    "gen_poputil_ops.ipu_stateful_gradient_accumulate",
    "it holds back updates in a compiled program. Use "
    "optimizers.GradientAccumulationOptimizerV2.",
)
