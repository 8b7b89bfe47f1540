"""The queue in which a program leaves tensors for the host."""

import enum
import itertools
from collections import defaultdict
from collections.abc import Iterator
from typing import Any
from weakref import WeakSet

import tensorflow as tf

from .refusals import logger


class IPUOutfeedMode(enum.Enum):
    """The tensors since the last call that are returned: all, or the last."""

    ALL = "all"
    LAST = "get_last"


class IPUOutfeedQueue:
    """Tensors that a program enqueues once in its code, and the host dequeues."""

    _numbers = itertools.count()

    def __init__(
        self,
        feed_name: str | None = None,
        outfeed_mode: IPUOutfeedMode | None = None,
        outfeed_all: bool | None = None,
        device_ordinal: int = 0,
        replication_factor: int = 1,
        io_batch_size: int = 1,
        buffer_depth: int = 1,
        optimise_latency: bool = False,
        **kwargs: Any,
    ) -> None:
        """Make a queue.

        Args:
            feed_name: Its name in older releases; it needs none.
            outfeed_mode: The tensors that `dequeue` returns; None for all.
            outfeed_all: The same, in older releases.
            device_ordinal: The device that enqueues.
            replication_factor: How many replicas did so in older releases.
            io_batch_size: How many tensors an IPU sends at once.
            buffer_depth: How many it may be ahead of the host.
            optimise_latency: Whether it sends at once.
            kwargs: Settings of transfers, which change no tensor.
        """
        if outfeed_all is not None:
            logger.warning("outfeed_all is deprecated: use outfeed_mode instead.")
            outfeed_mode = IPUOutfeedMode.ALL if outfeed_all else IPUOutfeedMode.LAST
        if not isinstance(outfeed_mode, IPUOutfeedMode | None):
            raise ValueError(f"{outfeed_mode!r} is not an IPUOutfeedMode.")
        if not isinstance(device_ordinal, int) or device_ordinal < 0:
            raise ValueError("Device ordinal must be an integer of 0 or more.")
        self._mode = outfeed_mode or IPUOutfeedMode.ALL
        self._name = f"outfeed_{next(self._numbers)}_{feed_name or ''}"
        self._structure: Any = None
        # The queues of the local replicas that enqueue, by their ids, for each graph.
        self._queues: dict[Any, dict[int, Any]] = {}
        self._enqueuing: dict[int, WeakSet[Any]] = defaultdict(WeakSet)

    @property
    def enqueued(self) -> bool:
        """Whether a program enqueues tensors."""
        return bool(self._queues)

    def enqueue(self, tensors: Any) -> Any:
        """Return the operation that enqueues a tensor, or a tuple or dict of some.

        Each local replica of a PopDistStrategy enqueues its own.

        Raises:
            ValueError: Something else is enqueued, or the graph enqueues already.
        """
        _check_structure(tensors)
        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        replica = _replica()
        if graph is not None and graph in self._enqueuing[replica]:
            raise ValueError("An outfeed can only be enqueued once.")
        flat = tf.nest.flatten(tensors)
        self._structure = tf.nest.map_structure(lambda tensor: 0, tensors)
        with tf.init_scope():
            queue = self._queue(flat, replica)
        if graph is not None:
            self._enqueuing[replica].add(graph)
        before = []
        if self._mode is IPUOutfeedMode.LAST:
            before = [queue.dequeue_many(queue.size())]
        with tf.control_dependencies(tf.nest.flatten(before)):
            return queue.enqueue(flat)

    def dequeue(self, wait_for_completion: bool = False) -> Any:
        """Return the tensors enqueued since the last call, stacked, or the last ones.

        Tensors that several local replicas have enqueued at once are stacked, too.

        Args:
            wait_for_completion: Whether to wait for a program that runs; those here
                have ended.

        Raises:
            ValueError: No program enqueues.
        """
        if not self.enqueued:
            raise ValueError(
                "Trying to dequeue an outfeed which has not been enqueued."
            )
        queues = self._queues[_outermost()]
        parts = [self._dequeue(queue) for _, queue in sorted(queues.items())]
        flat = parts[0]
        if len(parts) > 1:
            axis = 0 if self._mode is IPUOutfeedMode.LAST else 1
            flat = [tf.stack(each, axis) for each in zip(*parts, strict=True)]
        return tf.nest.pack_sequence_as(self._structure, flat)

    @property
    def deleter(self) -> Any:
        """An operation that empties the queue; eagerly, it has run."""
        queues = self._queues.get(_outermost(), {}).values()
        removed = [queue.dequeue_many(queue.size()) for queue in queues]
        with tf.control_dependencies(tf.nest.flatten(removed)):
            return tf.no_op()

    def __iter__(self) -> Iterator[Any]:
        return IPUOutfeedQueueIterator(self)

    def _dequeue(self, queue: Any) -> list[Any]:
        """Return what one replica has enqueued since the last call."""
        size = queue.size()
        if self._mode is IPUOutfeedMode.LAST:
            nothing = "Nothing has been enqueued since the last dequeue()."
            check = tf.debugging.assert_positive(size, message=nothing)
            with tf.control_dependencies([check] if check is not None else []):
                size = tf.identity(size)
        flat: list[Any] = tf.nest.flatten(queue.dequeue_many(size))
        if self._mode is IPUOutfeedMode.LAST:
            flat = [tensor[-1] for tensor in flat]
        return flat

    def _queue(self, flat: list[Any], replica: int) -> Any:
        """Return a replica's queue of this graph, or of eager execution."""
        queues = self._queues.setdefault(_outermost(), {})
        if replica not in queues:
            shapes = [tensor.shape for tensor in flat]
            if any(shape.rank is None for shape in shapes):
                raise ValueError(
                    f"Tensors of the shapes {shapes} are enqueued, but their numbers "
                    "of axes must be known beforehand."
                )
            # Keras traces its layers for batches of any size.
            known = all(shape.is_fully_defined() for shape in shapes)
            queue = tf.queue.FIFOQueue if known else tf.queue.PaddingFIFOQueue
            with tf.device("/device:CPU:0"):
                queues[replica] = queue(
                    -1,
                    [tensor.dtype for tensor in flat],
                    shapes,
                    name=f"{self._name}_{replica}",
                )
        return queues[replica]


def IPUOutfeedQueueIterator(outfeed_queue: IPUOutfeedQueue) -> Iterator[Any]:
    """Return what a queue holds, one element at a time; in eager execution."""
    if not tf.executing_eagerly():
        raise RuntimeError(
            "An outfeed queue can be iterated over in eager execution only. Run what "
            "dequeue() returns."
        )
    values = outfeed_queue.dequeue()
    if outfeed_queue._mode is IPUOutfeedMode.LAST:
        return iter([values])
    elements = zip(*map(tf.unstack, tf.nest.flatten(values)), strict=True)
    return iter([tf.nest.pack_sequence_as(values, list(each)) for each in elements])


class ScopedIPUOutfeedQueue(IPUOutfeedQueue):
    """A queue that is emptied at the end of a `with` block."""

    def __enter__(self) -> "ScopedIPUOutfeedQueue":
        return self

    def __exit__(self, *exception: object) -> None:
        if tf.executing_eagerly():
            _ = self.deleter


def _replica() -> int:
    """Return the number of this replica among a strategy's local replicas; else 0."""
    context = tf.distribute.get_replica_context()
    if context is None:
        return 0
    # In a graph it is a constant of it.
    return int(tf.get_static_value(context.replica_id_in_sync_group))


def _outermost() -> Any:
    """Return the outermost graph; None in eager execution."""
    with tf.init_scope():
        if tf.executing_eagerly():
            return None
        return tf.compat.v1.get_default_graph()


def _check_structure(tensors: Any) -> None:
    if tf.is_tensor(tensors):
        return
    if not isinstance(tensors, list | tuple | dict):
        raise ValueError(
            f"{tensors!r} is enqueued, but it must be a tensor, or a tuple or a "
            "dictionary of tensors."
        )
    if isinstance(tensors, dict):
        if not all(isinstance(key, str) for key in tensors):
            raise ValueError("All keys of an outfeed dictionary must be strings.")
        tensors = list(tensors.values())
    if not all(tf.is_tensor(tensor) for tensor in tensors):
        raise ValueError(f"{tensors!r} is enqueued, but not all of it are tensors.")
