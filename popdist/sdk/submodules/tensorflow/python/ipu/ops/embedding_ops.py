"""Look-ups in tables of embeddings."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import tensorflow as tf

from ..gradient_accumulation import Accumulation, check_count
from ..refusals import refuse
from .all_to_all_op import all_gather


def embedding_lookup(
    params: Any,
    ids: Any,
    name: str | None = None,
    serialization_factor: int = 1,
    indices_are_sorted: bool = False,
    **kwargs: Any,
) -> Any:
    """Return rows of a table.

    Args:
        params: The table.
        ids: The numbers of the rows.
        name: The name of the operation.
        serialization_factor: In how many parts an IPU reads the table.
        indices_are_sorted: Whether the numbers ascend.
        kwargs: Settings of older releases, which change no result.
    """
    return tf.gather(params, ids, name=name)


class HostEmbeddingOptimizerSpec:
    """Gradient descent for the table of a HostEmbedding; a rate of 0 for none."""

    def __init__(self, learning_rate: float, optimizer_name: str | None = None) -> None:
        if optimizer_name not in (None, "SGD"):
            refuse(f"optimizer {optimizer_name!r} of host embeddings", "it is SGD.")
        self._learning_rate = learning_rate

    def get_learning_rate(self) -> float:
        """Return the learning rate."""
        return self._learning_rate

    def get_accumulation_factor(self) -> int:
        """Return of how many micro-batches the gradients are added up."""
        return 1


class HostEmbeddingSGDGAOptimizerSpec(HostEmbeddingOptimizerSpec):
    """Gradient descent with the sums of the gradients of several micro-batches."""

    def __init__(self, learning_rate: float, accumulation_factor: int) -> None:
        super().__init__(learning_rate)
        self._factor = check_count("accumulation_factor", accumulation_factor)

    def get_accumulation_factor(self) -> int:
        """Return of how many micro-batches the gradients are added up."""
        return self._factor


class HostEmbedding:
    """A table that gradient descent changes as soon as gradients are computed.

    The program's optimizer does not change it. It has a trainable variable without
    effect, the dummy, so that the optimizer computes gradients of look-ups.
    """

    def __init__(
        self,
        name: str,
        embedding_tensor: Any,
        partition_strategy: str = "TOKEN",
        optimizer_spec: HostEmbeddingOptimizerSpec | None = None,
    ) -> None:
        """Make an embedding.

        Args:
            name: The scope of the dummy.
            embedding_tensor: The table, a variable with one row for each number.
            partition_strategy: Along which axis IPUs divide the table.
            optimizer_spec: How the table is trained; None for not at all.
        """
        if not isinstance(embedding_tensor, tf.Variable):
            raise ValueError(f"The table is {embedding_tensor!r}, but not a variable.")
        if not isinstance(optimizer_spec, HostEmbeddingOptimizerSpec | None):
            raise ValueError(
                f"optimizer_spec is {optimizer_spec!r}, but must be a "
                "HostEmbeddingOptimizerSpec or None."
            )
        if partition_strategy not in ("TOKEN", "ENCODING"):
            raise ValueError(
                f"partition_strategy is {partition_strategy!r}, but must be TOKEN or "
                "ENCODING."
            )
        self._table = embedding_tensor
        self._spec = optimizer_spec or HostEmbeddingOptimizerSpec(0)
        self._dummy: Any = None
        if self._spec.get_learning_rate():
            kind = embedding_tensor.dtype
            self._dummy = tf.Variable(tf.zeros([], kind), name=f"{name}/__dummy")

    def get_embedding_tensor(self) -> Any:
        """Return the table."""
        return self._table

    def register(self, session: Any = None) -> AbstractContextManager["HostEmbedding"]:
        """Return a context in which programs are run; here it connects nothing.

        Args:
            session: The session of the programs; not needed in eager execution.
        """
        if session is None and not tf.executing_eagerly():
            raise ValueError("HostEmbedding.register needs a session in a graph.")
        return nullcontext(self)

    def lookup(self, indices: Any, clip_indices: bool = True) -> Any:
        """Return rows of the table.

        Args:
            indices: The numbers of the rows.
            clip_indices: Whether numbers beyond the table stand for its ends.
        """
        if clip_indices:
            indices = tf.clip_by_value(indices, 0, self._table.shape[0] - 1)
        rows = tf.gather(self._table, indices)
        if self._dummy is None:
            return rows

        @tf.custom_gradient
        def trained(rows: Any, dummy: Any) -> Any:
            def backward(gradient: Any) -> Any:
                with tf.control_dependencies([self._update(indices, gradient)]):
                    return tf.zeros_like(rows), tf.zeros_like(dummy)

            return tf.identity(rows), backward

        return trained(tf.stop_gradient(rows), tf.convert_to_tensor(self._dummy))

    def _update(self, indices: Any, gradient: Any) -> Any:
        """Change the table by the gradients of rows, on all replicas alike."""
        width = self._table.shape[1]
        rows = tf.reshape(all_gather(gradient), [-1, width])
        places = tf.reshape(all_gather(indices), [-1])
        change = rows * tf.cast(self._spec.get_learning_rate(), rows.dtype)
        steps = self._spec.get_accumulation_factor()
        if steps == 1:
            return self._table.scatter_sub(tf.IndexedSlices(change, places))
        dense = tf.math.unsorted_segment_sum(change, places, self._table.shape[0])
        return Accumulation(steps, [dense], [None]).when_complete(
            lambda sums: self._table.assign_sub(sums[0], read_value=False)
        )


def create_host_embedding(
    name: str,
    shape: Sequence[int],
    dtype: Any,
    partition_strategy: str = "TOKEN",
    optimizer_spec: HostEmbeddingOptimizerSpec | None = None,
    initializer: Any = None,
) -> HostEmbedding:
    """Return an embedding with a new table.

    Args:
        name: The name of the table.
        shape: The numbers of its rows and columns.
        dtype: Its type.
        partition_strategy: Along which axis IPUs divide it.
        optimizer_spec: How it is trained; None for not at all.
        initializer: Its first values, or a function of shape and type that returns
            them; None for zeros.
    """
    if initializer is None:
        initializer = tf.zeros
    values = initializer(shape, dtype) if callable(initializer) else initializer
    with tf.device("/device:CPU:0"):
        table = tf.Variable(values, trainable=False, dtype=dtype, name=name)
    return HostEmbedding(name, table, partition_strategy, optimizer_spec)
