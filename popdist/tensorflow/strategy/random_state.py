"""Random numbers that differ between replicas, and are the same in every run."""

import tensorflow as tf
import wrapt

from popdist.replicated.seeds import seed_of
from popdist.tensorflow.tensors.memory import Tensor

# Keras 3's name for the state of a SeedGenerator: the seed, and how often it was used.
_STATE = "seed_generator_state"


def use_generators() -> None:
    """Let tf_keras, once it is imported, draw random numbers by generators.

    They draw others on each replica. Its layers would draw the same on all instances
    otherwise, by operations with the program's seed.
    """
    wrapt.register_post_import_hook(
        lambda tf_keras: tf_keras.src.backend.enable_tf_random_generator(), "tf_keras"
    )


def own_seed(
    name: str | None, state: Tensor, replica: int, *, other: int = 0
) -> Tensor:
    """Return the state of a replica's random generator, from another replica's.

    Values of variables that are no such states are returned as they are.

    Args:
        name: The variable's.
        replica: The number of the replica in the job.
        other: The number of the other replica; the first one has the program's own
            seed.
    """
    is_state = name is not None and _STATE in name and state.dtype.is_integer
    if not is_state or replica == other:
        return state
    change = tf.constant([_mask_of(replica) ^ _mask_of(other), 0], state.dtype)
    return tf.bitwise.bitwise_xor(state, change)


def _mask_of(replica: int) -> int:
    # Without the sign of an int32.
    return seed_of(0, replica, 0) & 0x7FFFFFFF if replica else 0
