"""Data sets as published programs give them: each local replica gets whole batches.

The instances have data sets of their own, which the program has sharded.
"""

import logging

import tensorflow as tf

from popdist.replicated.members import Members

logger = logging.getLogger("popdist.tensorflow")


def even_steps(
    dataset: tf.data.Dataset, members: Members, local_replicas: int
) -> tf.data.Dataset:
    """Return a data set with as many steps as those of all other instances.

    All instances must call this. In a step each local replica takes a batch, and the
    last one may be incomplete. Those that have more steps than another lose them.
    The length of a data set that TensorFlow cannot tell is left as it is.

    Raises:
        ValueError: An instance has no batch at all.
    """
    if members.instances is None or members.instances.size == 1:
        return dataset
    batches = int(dataset.cardinality())
    steps = -(-batches // local_replicas) if batches >= 0 else batches
    counts = members.gather(steps)
    if 0 in counts:
        raise ValueError(
            f"Instance {counts.index(0)} has a data set without a batch, so that no "
            "step can be made. Give each instance one batch or more: a smaller batch, "
            "or fewer shards."
        )
    known = [count for count in counts if count > 0]
    if tf.data.UNKNOWN_CARDINALITY in counts or len({*counts}) == 1:
        return dataset
    fewest = min(known)
    if members.instances.rank == 0:
        logger.warning(
            "The data sets of the instances have %s steps. All of them end after %d.",
            ", ".join("endless" if count < 0 else str(count) for count in counts),
            fewest,
        )
    return dataset.take(fewest * local_replicas)
