"""Numbers of replicas, and statements on tensors of several replicas."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import popdist

from ..config import is_configured
from ..replication import check_replicas, process_count, process_index
from .cross_replica_ops import assume_equal_across_replicas, is_of_popdist

__all__ = ["assume_equal_across_replicas", "replica_count", "replication_index"]


def replication_index(name: str | None = None) -> Any:
    """Return which of the program's replicas this is, as a tensor of int32."""
    context = tf.distribute.get_replica_context()
    if is_of_popdist(context):
        return tf.cast(context.replica_id_in_sync_group, tf.int32, name)
    return _of_process(process_index, name)


def replica_count(name: str | None = None) -> Any:
    """Return how many replicas the program has, as a tensor of int32."""
    context = tf.distribute.get_replica_context()
    if is_of_popdist(context):
        return tf.constant(context.num_replicas_in_sync, tf.int32, name=name)
    return _of_process(lambda: process_count() or 1, name)


def _of_process(number: Callable[[], int], name: str | None) -> Any:
    """Return a number that follows from the configuration.

    Programs may be compiled before they are configured.
    """
    if process_count():
        check_replicas()
    if is_configured() or popdist.getNumInstances() == 1:
        return tf.constant(number(), tf.int32, name=name)
    value = tf.numpy_function(lambda: np.int32(number()), [], tf.int32, name=name)
    value.set_shape([])
    return value
