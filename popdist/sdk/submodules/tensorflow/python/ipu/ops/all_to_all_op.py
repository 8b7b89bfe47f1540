"""Exchanges between all replicas."""

from typing import Any

import tensorflow as tf

from popdist.tensorflow import allgather

from ..refusals import refused
from ..replication import (
    check_replicas,
    check_replication_factor,
    process_count,
    require_configuration,
)

all_to_all = refused(
    "all_to_all", "use all_gather, and take the slices that are needed."
)


def all_gather(
    x: Any, replication_factor: int | None = None, name: str | None = None
) -> Any:
    """Return the tensors of all replicas along a new first axis.

    Args:
        x: A tensor, or several, of the same shape and type in all replicas.
        replication_factor: How many replicas there are, which is checked; None for as
            many as there are.
        name: The name of the operation.
    """
    require_configuration("all_gather")
    check_replication_factor(replication_factor)
    if not process_count():
        return tf.nest.map_structure(lambda each: tf.expand_dims(each, 0), x)
    check_replicas()
    return tf.nest.map_structure(allgather, x)
