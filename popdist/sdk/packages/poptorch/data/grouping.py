"""Batches out of smaller ones."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import Sampler

from ..errors import Error
from .nesting import convert, tensors_of


class GroupedBatchSampler(Sampler[list[int]]):
    """Batches of indices, each made of several batches of another sampler."""

    def __init__(
        self, batches: Iterable[Sequence[int]], count: int, drop_last: bool
    ) -> None:
        self._batches = batches
        self._count = count
        self._drop_last = drop_last

    def __iter__(self) -> Iterator[list[int]]:
        group: list[int] = []
        number = 0
        for batch in self._batches:
            group += batch
            number += 1
            if number == self._count:
                yield group
                group, number = [], 0
        if number and not self._drop_last:
            yield group

    def __len__(self) -> int:
        # Any sampler may be endless and have no length: torch says so itself.
        groups, rest = divmod(len(self._batches), self._count)  # type: ignore[arg-type]
        return groups + (rest > 0 and not self._drop_last)


# Any: batches are tensors in whatever structure a program returns.
def regroup(batches: Iterable[Any], size: int, drop_last: bool) -> Iterator[Any]:
    """Yield batches of `size` samples, made of batches of any size.

    Args:
        batches: Nested tensors that all have the same length.
        size: How many samples each batch has.
        drop_last: Whether the last one is left out if it has less.

    Raises:
        Error: A batch has no tensors, or tensors of different lengths.
    """
    waiting: list[Any] = []
    have = 0
    for batch in batches:
        waiting.append(batch)
        have += _length(batch)
        while have >= size:
            whole = _joined(waiting)
            yield convert(whole, lambda tensor: tensor[:size])
            waiting = [convert(whole, lambda tensor: tensor[size:])]
            have -= size
    if have and not drop_last:
        yield _joined(waiting)


def _length(batch: Any) -> int:
    lengths = {len(t) if t.dim() else None for t in tensors_of(batch)}
    if len(lengths) != 1 or None in lengths:
        raise Error(
            "What a data set yields cannot be made into batches of another size: the "
            "tensors of one item must all have a first dimension of the same length, "
            f"but theirs are {sorted(map(str, lengths))}."
        )
    return int(lengths.pop() or 0)


def _joined(batches: list[Any]) -> Any:
    if len(batches) == 1:
        return batches[0]
    parts = zip(*(tensors_of(batch) for batch in batches), strict=True)
    joined = iter([torch.cat(tensors) for tensors in parts])
    return convert(batches[0], lambda _: next(joined))
