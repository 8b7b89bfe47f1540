"""The part of a data set that one process loads."""

import copy
from typing import Any, Self

import torch
from torch.utils.data import Dataset

from popdist.replicated.shares import Share

from .shared_memory import move_to_shared


# Any: samples are whatever the data set has.
class Partition(Dataset[Any]):
    """The share of one process, in the order of the data set or shuffled.

    All processes shuffle the whole data set alike, so their shares stay disjoint.
    """

    def __init__(self, dataset: Any, share: Share, seed: int | None = None) -> None:
        """Make a partition; with a seed, it is shuffled for each pass."""
        self._dataset = dataset
        self._share = share
        # In shared memory: workers that live for several passes see their changes.
        self._order: torch.Tensor | None = None
        self._moved_by = move_to_shared(torch.zeros(1, dtype=torch.int64))
        # The state of a generator: it has none in shared memory, as a tensor would when
        # it is sent to a process.
        # Any: numpy's arrays of bytes.
        self._random_state: Any = None
        if seed is not None:
            self._random_state = torch.Generator().manual_seed(seed).get_state().numpy()

    def begin_pass(self) -> None:
        """Shuffle, and load the leftovers in every other pass."""
        if self._random_state is None:
            return
        generator = torch.Generator()
        generator.set_state(torch.from_numpy(self._random_state))
        order = torch.randperm(len(self._dataset), generator=generator)
        self._random_state = generator.get_state().numpy()
        if self._order is None:
            self._order = move_to_shared(order)
        else:
            self._order.copy_(order)
        self._moved_by.fill_(self._share.leftovers - int(self._moved_by.item()))

    def separate(self) -> Self:
        """Return a partition that goes on as this one would, and shares no memory."""
        other = copy.copy(self)
        other._moved_by = move_to_shared(self._moved_by.clone())
        other._order = None
        return other

    def __len__(self) -> int:
        return self._share.length

    def _index(self, index: int) -> int:
        if not 0 <= index < self._share.length:
            raise IndexError(
                f"{index} is not an index of the {self._share.length} samples that "
                "this process loads. A sampler counts from 0 in len(loader.dataset); "
                "a sampler of the whole data set needs "
                "auto_distributed_partitioning=False."
            )
        index += self._share.offset + int(self._moved_by.item())
        return index if self._order is None else int(self._order[index].item())

    def __getitem__(self, index: int) -> Any:
        return self._dataset[self._index(index)]

    @property
    def __getitems__(self) -> Any:
        """The function for several samples at once, None if the data set has none."""
        several = getattr(self._dataset, "__getitems__", None)
        return several and (lambda indices: several([*map(self._index, indices)]))
