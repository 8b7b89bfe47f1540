"""Data sets as published programs give them: each local replica gets whole batches.

The instances have data sets of their own, which the program has sharded.
"""

import logging
from collections.abc import Sequence

import tensorflow as tf
from tensorflow.python.distribute.input_lib import _is_statically_shaped

from popdist.replicated.members import Members

logger = logging.getLogger("popdist.tensorflow")

_UNKNOWN, _ENDLESS = tf.data.UNKNOWN_CARDINALITY, tf.data.INFINITE_CARDINALITY


def steps_of(batches: int, replicas: int, *, partial: bool) -> int:
    """Return the number of steps in which each replica takes one batch.

    Args:
        batches: How many; a number below 0, as TensorFlow has for an unknown length and
            for endless data, is returned as it is.
        replicas: How many replicas take them.
        partial: Whether replicas may be without a batch in the last step.
    """
    if batches < 0:
        return batches
    return -(-batches // replicas) if partial else batches // replicas


def fewest_of(counts: Sequence[int]) -> int:
    """Return the smallest number of steps, which is unknown if one of them is."""
    if 0 in counts:
        return 0
    if _UNKNOWN in counts:
        return _UNKNOWN
    return min((count for count in counts if count > 0), default=_ENDLESS)


def even_steps(
    datasets: Sequence[tf.data.Dataset], members: Members, replicas: int
) -> list[tf.data.Dataset]:
    """Return data sets with as many steps as the data of all other instances.

    All instances must call this. In a step each local replica takes a batch. The last
    step may be incomplete, unless the batches have a fixed shape, which an empty one
    lacks. Instances that have more steps than another lose them. Where the length of
    the data of one instance is unknown, it is on all of them, and their iterators
    agree on each step: see iterators.py.

    Args:
        datasets: One for all local replicas, or one for each.
        members: The instances.
        replicas: How many local replicas take batches of each data set.

    Raises:
        ValueError: An instance has no step at all.
    """
    if not tf.executing_eagerly():
        # In a graph no length is known.
        return list(datasets)
    partial = not all(_is_statically_shaped(data.element_spec) for data in datasets)
    batches = [int(data.cardinality()) for data in datasets]
    own = fewest_of([steps_of(count, replicas, partial=partial) for count in batches])
    counts = members.gather(own)
    fewest = fewest_of(counts)
    if fewest == 0:
        raise ValueError(
            f"Instance {counts.index(0)} has too few batches for a step, which takes "
            "one batch, or one for each local replica where batches have a fixed shape "
            "(drop_remainder=True). Use a smaller batch, or fewer shards."
        )
    if fewest == _UNKNOWN:
        return [
            data if count == _UNKNOWN else data.filter(lambda *_: True)
            for data, count in zip(datasets, batches, strict=True)
        ]
    if fewest == _ENDLESS:
        return list(datasets)
    if len({*counts}) > 1 and members.instances and members.instances.rank == 0:
        logger.warning(
            "The data sets of the instances have %s steps. All of them end after %d.",
            ", ".join("endless" if count < 0 else str(count) for count in counts),
            fewest,
        )
    most = fewest * replicas
    return [
        data if 0 <= count <= most else data.take(most)
        for data, count in zip(datasets, batches, strict=True)
    ]
