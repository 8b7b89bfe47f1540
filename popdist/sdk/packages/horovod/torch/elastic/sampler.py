"""A sampler that goes on in the middle of an epoch."""

from collections.abc import Iterator, Sized
from random import Random

from torch.utils.data import Sampler

from ..ranks.basics import rank, size


class ElasticSampler(Sampler[int]):
    """Shares out a data set among the ranks, without the samples processed so far.

    The program calls record_batch() after each batch and set_epoch() after each epoch,
    and gives the sampler to its TorchState.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        """Begin the first epoch.

        Args:
            dataset: What is sampled; its length is fixed.
            shuffle: Take the samples in an order that each epoch has of its own.
            seed: The same on all ranks; it determines the orders.
        """
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        # How many samples of this epoch the ranks have processed together.
        self.processed_num = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch, of which nothing is processed. Call it after the one before.

        Called before the rest of an epoch that was left off, it would repeat samples.
        """
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Count a batch as processed, on all ranks.

        Args:
            batch_idx: Its number; not used here.
            batch_size: How many samples it has on each rank.
        """
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, int]:
        """Return the epoch, and how many of its samples are processed."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Go on where a sampler with this state is."""
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Share out what is not processed yet."""
        self.num_replicas = size()
        self.rank = rank()
        indices = list(range(len(self.dataset)))
        if self.shuffle:
            Random(self.seed + self.epoch).shuffle(indices)
        self.remaining_indices = indices[self.processed_num :]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        """Return this rank's indices; all ranks have equally many.

        The first ones are repeated, where they cannot be shared equally.
        """
        left = self.remaining_indices
        padded = left + left[: self.total_size - len(left)]
        # Where fewer are left than ranks, once is not enough.
        while left and len(padded) < self.total_size:
            padded += left[: self.total_size - len(padded)]
        return iter(padded[self.rank :: self.num_replicas])

    def __len__(self) -> int:
        return self.num_samples
