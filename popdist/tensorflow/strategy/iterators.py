"""Iterators of data sets, which give each local replica a batch.

Where the local replicas' batches differ in their numbers of rows, as in the last step,
the rows are shared out evenly, as MirroredStrategy does, so all rows have equal weight.
A replica gets an empty batch if there are fewer rows than replicas, or if rows cannot
move from one batch to another.

If the length of the data is unknown, the instances agree on each step: they make it if
all of them have data. All end with the first instance without data.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import input_lib

from popdist.tensorflow.extending import extends
from popdist.tensorflow.strategy.extended import is_popdist
from popdist.tensorflow.tensors.memory import Tensor

Iterator = Any


@extends("DistributedIteratorBase.get_next")
def get_next(get_next: Any, iterator: Iterator, name: str | None = None) -> Any:
    """Return the batches of the next step, or raise TensorFlow's error of the end."""
    if not _makes_steps(iterator):
        return get_next(iterator, name)
    is_step, values = _next_step(iterator)
    if tf.executing_eagerly():
        if not is_step:
            raise tf.errors.OutOfRangeError(None, None, "End of sequence")
        return values()
    if not _is_unknown(iterator):
        end = iterator._get_next_no_partial_batch_handling
        return tf.cond(is_step, values, end)
    # Other instances may be at the end, which this one's data does not show.
    with tf.control_dependencies([_end_unless(is_step)]):
        return values()


@extends("DistributedIteratorBase.get_next_as_optional")
def get_next_as_optional(get_next_as_optional: Any, iterator: Iterator) -> Any:
    """Return the batches of the next step, or an empty optional at the end."""
    if not _makes_steps(iterator):
        return get_next_as_optional(iterator)
    is_step, values = _next_step(iterator)
    return tf.cond(
        is_step,
        lambda: tf.experimental.Optional.from_value(values()),
        lambda: tf.experimental.Optional.empty(iterator._element_spec),
    )


def _makes_steps(iterator: Iterator) -> bool:
    has_partial_steps = iterator._enable_get_next_as_optional
    return is_popdist(iterator._strategy) and (
        has_partial_steps or _is_unknown(iterator)
    )


def _is_unknown(iterator: Iterator) -> bool:
    return bool(iterator._cardinality == tf.data.UNKNOWN_CARDINALITY)


def _next_step(iterator: Iterator) -> tuple[Tensor, Callable[[], Any]]:
    """Return whether there is a next step, and what returns its values."""
    workers = iterator._input_workers.worker_devices
    optionals = []
    for worker, each in zip(workers, iterator._iterators, strict=True):
        with tf.device(worker):
            optionals += each.get_next_as_optional_list()
    with tf.device(workers[0]):
        has_batch = [optional.has_value() for optional in optionals]
        # Batches of a fixed shape cannot be empty.
        partial = iterator._enable_get_next_as_optional
        is_step = tf.reduce_any(has_batch) if partial else tf.reduce_all(has_batch)
        if _is_unknown(iterator):
            is_step = iterator._strategy.extended.true_on_all(is_step)

    def values() -> Any:
        devices = iterator._strategy.extended.worker_devices
        # The first replica has a batch if one of them does.
        with tf.device(devices[0]):
            batches = [optionals[0].get_value()]
        others = zip(devices[1:], optionals[1:], has_batch[1:], strict=True)
        for device, optional, has in others:
            with tf.device(device):
                batches.append(_batch_or_empty(optional, has, batches[0]))
        if partial:
            batches = _with_even_rows(batches, devices)
        return input_lib._create_per_replica(batches, iterator._strategy)

    return is_step, values


# Any: a batch is a structure of tensors.
def _with_even_rows(batches: list[Any], devices: Sequence[str]) -> list[Any]:
    """Return the batches of a step with their rows shared out evenly, if they can be.

    The rows of one batch can be given to another if all tensors of a batch have as many
    rows, and the same shape in all batches but for that.
    """
    flat = [tf.nest.flatten(batch) for batch in batches]
    # The rank of a scalar is 0, and an unknown one None.
    has_rows = [isinstance(x, tf.Tensor) and bool(x.shape.rank) for x in flat[0]]
    if len(batches) == 1 or not all(has_rows):
        return batches
    with tf.device(devices[0]):
        shapes = [[tf.shape(x) for x in tensors] for tensors in flat]
        rows = tf.stack([[shape[0] for shape in each] for each in shapes])
        # Shapes may differ in their lengths from tensor to tensor.
        others = tf.stack([tf.concat([s[1:] for s in each], 0) for each in shapes])
        is_uneven = tf.reduce_any(rows != rows[0])
        can_move = tf.reduce_all(rows == rows[:, :1]) & tf.reduce_all(
            others == others[0]
        )
        total = tf.reduce_sum(rows[:, 0])

    def even() -> list[Any]:
        # The first replicas get one more where rows are left over.
        sizes = (total + len(batches) - 1 - tf.range(len(batches))) // len(batches)
        columns = [
            tf.split(tf.concat(tensors, 0), sizes, num=len(batches))
            for tensors in zip(*flat, strict=True)
        ]
        return [
            tf.nest.pack_sequence_as(batches[0], tensors)
            for tensors in zip(*columns, strict=True)
        ]

    return tf.cond(is_uneven & can_move, even, lambda: batches)


def _batch_or_empty(optional: Any, has_batch: Tensor, other: Any) -> Any:
    """Return the batch of a replica, or an empty one that is like another batch."""
    return tf.cond(
        has_batch, optional.get_value, lambda: tf.nest.map_structure(_empty_like, other)
    )


def _empty_like(batch: Tensor) -> Tensor:
    if isinstance(batch, tf.SparseTensor):
        shape = tf.concat([[0], batch.dense_shape[1:]], 0)
        return tf.sparse.slice(batch, tf.zeros_like(shape), shape)
    has_rows = isinstance(batch, tf.RaggedTensor) or (
        isinstance(batch, tf.Tensor) and batch.shape.rank != 0
    )
    return batch[:0] if has_rows else batch


def _end_unless(is_step: Tensor) -> Tensor:
    """Return an operation that fails as an iterator does at its end."""

    def end() -> Any:
        nothing = tf.data.Dataset.range(0)
        return tf.compat.v1.data.make_one_shot_iterator(nothing).get_next()

    return tf.cond(is_step, lambda: tf.constant(0, tf.int64), end)
