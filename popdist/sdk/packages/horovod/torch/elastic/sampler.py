"""A sampler that divides the rest of an epoch among new ranks."""

import random
from collections.abc import Iterator, Sized
from typing import Any

from torch.utils.data import Sampler

from ...common.calls.submission import BASICS


class ElasticSampler(Sampler[int]):
    """Divides a data set among the ranks, and after a change the rest of an epoch.

    A program gives it to a TorchState, calls record_batch() after each batch, and
    set_epoch() at the end of each epoch.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        """Begin with epoch 0.

        Args:
            dataset: The data set; its size must not change.
            shuffle: Draw the samples in another order in each epoch.
            seed: The same on all ranks.
        """
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.epoch = 0
        # The samples that all ranks together have processed in this epoch.
        self.processed_num = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch: no sample of it is processed."""
        self.epoch, self.processed_num = epoch, 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Take note that each rank has processed a batch."""
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch, and how many of its samples are processed."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state_dict(), with the ranks of today."""
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Divide the samples that are left among the ranks."""
        self.num_replicas, self.rank = BASICS.size(), BASICS.rank()
        indices = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(indices)
        self.remaining_indices = indices[self.processed_num :]
        # Rounded up: all ranks have the same number of samples.
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        """Yield this rank's samples; the first ones again where some are missing."""
        left = self.remaining_indices
        indices = range(self.rank, self.total_size, self.num_replicas)
        return iter([left[index % len(left)] for index in indices])

    def __len__(self) -> int:
        return self.num_samples
