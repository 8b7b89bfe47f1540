"""Reduce the logs of Keras's steps over all replicas of the job.

Keras reduces the logs of the local replicas. Under PopDistStrategy all replicas reduce
them first, in the call that aggregates the metrics at the end of the step.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

from popdist.tensorflow.strategy.aggregation import widened
from popdist.tensorflow.tensors.memory import Tensor

# How Keras reduces the logs of the step that it makes; None outside of its steps.
REDUCTION: ContextVar[Any] = ContextVar("popdist.logs", default=None)


@tf.autograph.experimental.do_not_convert
def logs_in(result: Any, merged: Sequence[Any]) -> dict[int, Tensor]:
    """Return the numbers that a replica has computed itself, by place in its result.

    Args:
        result: The replica's result.
        merged: Results that are equal on all replicas.
    """
    alike = {id(each) for each in tf.nest.flatten(merged)}
    return {
        index: each
        for index, each in enumerate(tf.nest.flatten(result))
        if isinstance(each, tf.Tensor)
        and each.shape.rank == 0
        and (each.dtype.is_floating or each.dtype.is_integer)
        and id(each) not in alike
    }


@tf.autograph.experimental.do_not_convert
def summands_of(logs: Mapping[int, Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Return what the replicas sum for their logs: whether there are some, and these.

    A replica that has no samples in the last step has no logs.

    Args:
        logs: The logs of a replica.
        inputs: The tensors of its step.
    """
    if not logs:
        return []
    batch = next((each for each in inputs if each.shape.rank), None)
    has_rows = tf.constant(True) if batch is None else tf.shape(batch)[0] > 0
    wide = [widened(each) for each in logs.values()]
    return [
        tf.cast(has_rows, tf.float32),
        *[tf.where(has_rows, each, tf.zeros_like(each)) for each in wide],
    ]


@tf.autograph.experimental.do_not_convert
def logs_of_sums(reduce_op: Any, sums: Sequence[Tensor]) -> list[Tensor]:
    """Return the logs, by the sums of summands_of()."""
    if reduce_op is tf.distribute.ReduceOp.SUM or not sums:
        return list(sums[1:])
    replicas, *totals = sums
    return [
        each / tf.cast(replicas, each.dtype)
        if each.dtype.is_floating
        else each // tf.cast(replicas, each.dtype)
        for each in totals
    ]


@tf.autograph.experimental.do_not_convert
def with_logs(result: Any, places: Iterable[int], logs: Sequence[Tensor]) -> Any:
    """Return a result with other logs at these places."""
    flat = tf.nest.flatten(result)
    for place, log in zip(places, logs, strict=True):
        flat[place] = log
    return tf.nest.pack_sequence_as(result, flat)
