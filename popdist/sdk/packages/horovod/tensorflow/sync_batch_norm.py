"""Batch normalization with the statistics of the ranks' batches together."""

from typing import Any

import tensorflow as tf

from popdist.tensorflow.tensors.memory import Tensor

from ..common.calls.reduce_ops import Sum
from ..common.process_sets import ProcessSet, global_process_set
from .collectives import grouped_allreduce

# Any, here and below: neither Keras has types.


class SyncBatchNormalization(tf.keras.layers.BatchNormalization):
    """Normalizes by the mean and variance of all ranks' batches.

    The ranks' batches may have different lengths. In inference, each rank normalizes
    by the running statistics, as BatchNormalization does.
    """

    def __init__(
        self, *args: Any, process_set: ProcessSet = global_process_set, **kwargs: Any
    ) -> None:
        """Make a layer; BatchNormalization has the same arguments.

        Raises:
            ValueError: fused=True is asked for.
        """
        if kwargs.pop("fused", False):
            raise ValueError(
                "SyncBatchNormalization cannot be fused, because its statistics come "
                "from several ranks. Leave out fused."
            )
        super().__init__(*args, **kwargs)
        self.fused = False
        self.process_set = process_set
        self._in_training = True

    def call(self, inputs: Tensor, training: Any = None, mask: Any = None) -> Tensor:
        """Return the normalized batch."""
        # tf_keras computes moments in inference, too, and does not use them.
        self._in_training = training is None or bool(training)
        return super().call(inputs, training=training, mask=mask)

    def _moments(
        self, inputs: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        mean, variance = super()._moments(inputs, *args, **kwargs)
        if not self._in_training or self.process_set.size() == 1:
            return mean, variance
        mask = kwargs.get("mask", args[0] if len(args) == 1 else None)
        own = _elements_of_channel(inputs, mask, mean)
        sums, count = grouped_allreduce(
            [mean * own, own], op=Sum, process_set=self.process_set
        )
        whole_mean = sums / count
        # Distances from the mean of all ranks are small where squares would not be.
        distances = (variance + tf.square(mean - whole_mean)) * own
        (squares,) = grouped_allreduce(
            [distances], op=Sum, process_set=self.process_set
        )
        return whole_mean, squares / count


def _elements_of_channel(inputs: Tensor, mask: Any, mean: Tensor) -> Tensor:
    """Return how many elements of each channel are not masked, as a float."""
    if mask is None:
        return tf.cast(tf.size(inputs) / tf.size(mean), mean.dtype)
    used = tf.broadcast_to(tf.expand_dims(mask, -1), tf.shape(inputs))
    elements = tf.reduce_sum(tf.cast(used, mean.dtype))
    return elements / tf.cast(tf.size(mean), mean.dtype)
