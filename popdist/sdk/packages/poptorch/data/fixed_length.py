"""A data set of a program's own iterable, with a length."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from torch.utils.data import IterableDataset

from ..errors import require


class FixedLengthIterableDataset(IterableDataset[Any]):
    """An iterable data set with a length, which loaders of it then have too."""

    def __init__(self, dataset: Iterable[Any], length: int) -> None:
        """Make a data set of as many samples of another one, or less if it has less."""
        require(
            isinstance(length, int) and length >= 0,
            f"length is {length!r}, but must be an integer of 0 or more.",
        )
        self._dataset = dataset
        self._length = length

    def __iter__(self) -> Iterator[Any]:
        return islice(self._dataset, self._length)

    def __len__(self) -> int:
        return self._length
