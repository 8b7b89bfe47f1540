"""Sums over all replicas; each replica keeps a part."""

from typing import Any

import tensorflow as tf

from ..replication import (
    check_replication_factor,
    process_count,
    process_index,
    require_configuration,
)
from .cross_replica_ops import cross_replica_mean, cross_replica_sum


def reduce_scatter(
    x: Any, replication_factor: int | None = None, op: str = "COLLECTIVE_OP_ADD"
) -> Any:
    """Return this replica's part of the flat sum of a tensor, padded with 0.

    Args:
        x: A tensor, or several, of the same shape and type in all replicas.
        replication_factor: How many replicas there are, which is checked; None for as
            many as there are.
        op: The operation: COLLECTIVE_OP_ADD, or COLLECTIVE_OP_MEAN.
    """
    require_configuration("reduce_scatter")
    check_replication_factor(replication_factor)
    reductions = {
        "COLLECTIVE_OP_ADD": cross_replica_sum,
        "COLLECTIVE_OP_MEAN": cross_replica_mean,
    }
    if op not in reductions:
        raise ValueError(f"op is {op!r}, but must be one of {', '.join(reductions)}.")
    replicas = process_count() or 1

    def part(tensor: Any) -> Any:
        total = tf.reshape(reductions[op](tensor), [-1])
        length = -(-total.shape[0] // replicas)
        padded = tf.pad(total, [[0, length * replicas - total.shape[0]]])
        return padded[process_index() * length : (process_index() + 1) * length]

    return tf.nest.map_structure(part, x)
