"""Seeds of the replicas' random numbers: a stream for each in every iteration."""

from collections.abc import Callable
from functools import lru_cache

_MASK = (1 << 64) - 1


class ReplicaStreams:
    """The random numbers of the local replicas of one model."""

    def __init__(
        self,
        seed: int | None,
        default_seed: Callable[[], int],
        set_seed: Callable[[int], object],
    ) -> None:
        """Begin at the first iteration.

        Args:
            seed: The seed of the model; None for the default.
            default_seed: Returns the default when it is needed first.
            set_seed: Seeds the framework's generator.
        """
        self._seed, self._default_seed, self._set_seed = seed, default_seed, set_seed
        # How many device iterations have run.
        self.iterations = 0
        # The number in the job of local replica 0.
        self.first_replica = 0

    @property
    def numbers(self) -> list[int]:
        """The seed of the model, and how many iterations have run."""
        if self._seed is None:
            self._seed = self._default_seed()
        return [self._seed, self.iterations]

    @numbers.setter
    def numbers(self, numbers: list[int]) -> None:
        self._seed, self.iterations = numbers

    def begin(self, replica: int) -> None:
        """Seed the generator for a local replica in the current iteration."""
        seed, iteration = self.numbers
        self._set_seed(seed_of(seed, self.first_replica + replica, iteration))


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
