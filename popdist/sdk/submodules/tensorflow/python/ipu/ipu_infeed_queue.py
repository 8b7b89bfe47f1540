"""The queue from which loops and pipelines take the batches of a data set."""

from typing import Any, NoReturn

import tensorflow as tf
from tensorflow.python.data.ops.iterator_ops import OwnedIterator

from .loops import split_arguments


class IPUInfeedQueue:
    """The batches of a data set, taken one by one by the loop that has the queue."""

    def __init__(
        self,
        dataset: Any,
        feed_name: str | None = None,
        device_ordinal: int = 0,
        replication_factor: int = 1,
        data_to_prefetch: int = 1,
        prefetch_depth: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Make a queue.

        Args:
            dataset: The data set, with batches of one size.
            feed_name: Its name in older releases; it needs none.
            device_ordinal: The device that takes from it.
            replication_factor: How many replicas did so in older releases.
            data_to_prefetch: How many batches an IPU fetched ahead in older releases.
            prefetch_depth: How many batches an IPU fetches ahead.
            kwargs: Settings of optimisations, which change no batch.
        """
        self._dataset = dataset
        spec = dataset.element_spec
        _check_shapes(spec)
        if prefetch_depth is not None and not 0 < prefetch_depth < 256:
            raise ValueError(
                f"prefetch_depth is {prefetch_depth}, but must be from 1 to 255."
            )
        args, named = split_arguments(spec)
        self.number_of_tuple_elements = len(args) + len(named)
        self.dequeued = False
        self._iterator = _make_iterator(dataset)

    def _dequeue(self) -> Any:
        """Return the next batch, in a loop."""
        self.dequeued = True
        return self._iterator.get_next()

    @property
    def initializer(self) -> Any:
        """An operation that begins with the first batch; eagerly, it has run."""
        if not tf.executing_eagerly():
            return self._iterator.initializer
        return tf.raw_ops.MakeIterator(
            dataset=self._dataset._variant_tensor,
            iterator=self._iterator._iterator_resource,
        )

    @property
    def deleter(self) -> Any:
        """An operation that does nothing: the program's end frees the queue."""
        return tf.no_op()

    def get_next(self) -> NoReturn:
        """Refuse: loops take the batches."""
        raise ValueError(
            "`get_next()` is now obsolete as the IPUInfeedQueue is now automatically "
            "dequeued by the loop."
        )


_Iterator: Any = OwnedIterator


class IPUIterator(_Iterator):
    """An iterator of a data set, which functions for IPUs take as an argument."""

    def __init__(self, dataset: Any, **kwargs: Any) -> None:
        """Make one, in eager execution.

        Args:
            dataset: The data set, with batches of one size.
            kwargs: Settings of an IPUInfeedQueue, which change no batch.
        """
        _check_shapes(dataset.element_spec)
        super().__init__(dataset)


IPUOwnedIterator = IPUIterator


def _check_shapes(spec: Any) -> None:
    for each in tf.nest.flatten(spec):
        if not each.shape.is_fully_defined():
            raise ValueError(
                f"Output shape {each.shape} is not fully defined. If using "
                "tf.Dataset.batch, set `drop_remainder=True`."
            )


def _make_iterator(dataset: Any) -> Any:
    with tf.device("/device:CPU:0"):
        if tf.executing_eagerly():
            return iter(dataset)
        return tf.compat.v1.data.make_initializable_iterator(dataset)
