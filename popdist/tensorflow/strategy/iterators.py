"""Iterators of data sets, which give each local replica a batch, or an empty one.

Where the length of the data is unknown, the instances agree on each step: it is made if
all of them have data for it, so that all end with the first one that has none.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import input_lib

from popdist.tensorflow.strategy.extending import extend
from popdist.tensorflow.tensors.memory import Tensor

# Any: TensorFlow declares no types.
Iterator = Any

_MODULE, _CLASS = input_lib.__name__, "DistributedIteratorBase"


def make_steps(strategy_class: type) -> None:
    """Let the iterators of this class of strategies make steps of batches so.

    Their extended strategies have a method true_on_all, which returns whether a tensor
    is true on all instances.
    """
    extend(_MODULE, _CLASS, "get_next", partial(_get_next, strategy_class))
    extend(
        _MODULE,
        _CLASS,
        "get_next_as_optional",
        partial(_get_next_as_optional, strategy_class),
    )


def _get_next(
    strategy_class: type, get_next: Any, iterator: Iterator, name: str | None = None
) -> Any:
    if not _makes_steps(iterator, strategy_class):
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


def _get_next_as_optional(
    strategy_class: type, get_next_as_optional: Any, iterator: Iterator
) -> Any:
    if not _makes_steps(iterator, strategy_class):
        return get_next_as_optional(iterator)
    is_step, values = _next_step(iterator)
    return tf.cond(
        is_step,
        lambda: tf.experimental.Optional.from_value(values()),
        lambda: tf.experimental.Optional.empty(iterator._element_spec),
    )


def _makes_steps(iterator: Iterator, strategy_class: type) -> bool:
    has_partial_steps = iterator._enable_get_next_as_optional
    return isinstance(iterator._strategy, strategy_class) and (
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
        return input_lib._create_per_replica(batches, iterator._strategy)

    return is_step, values


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
