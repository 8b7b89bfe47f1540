"""Seeds of the replicas' random numbers: a stream for each in every iteration."""

from functools import lru_cache

_MASK = (1 << 64) - 1


def seed_of(seed: int, replica: int, iteration: int) -> int:
    """Return the seed, of 32 bits, of one replica in one iteration.

    It depends only on the seed of the model, the index of the replica in the job and
    the iteration, so that it is the same in any split into instances.
    """
    mixed = _mix(seed & _MASK)
    mixed = _mix(mixed ^ _mix(replica))
    mixed = _mix(mixed ^ _mix(iteration))
    return mixed >> 32


# The seed and the numbers of replicas are mixed anew in each iteration.
@lru_cache(maxsize=1024)
def _mix(value: int) -> int:
    """Return a hash of the value; all bits depend on all of its bits (splitmix64)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
