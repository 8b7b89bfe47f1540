"""Batches out of smaller ones.

Any: samples and batches are tensors in all structures.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch.utils.data import Dataset, Sampler, default_collate

from ..errors import Error
from .nesting import convert, leaves_of, tensors_of


def group_count(items: int, size: int, drop_last: bool) -> int:
    """Return how many groups of a size there are; a smaller last one may count."""
    groups, remainder = divmod(items, size)
    return groups + (remainder > 0 and not drop_last)


class GroupedBatchSampler(Sampler[list[Sequence[int]]]):
    """Lists of batches of indices, those that one call of a model takes."""

    def __init__(
        self, batches: Iterable[Sequence[int]], count: int, drop_last: bool
    ) -> None:
        self._batches = batches
        self._count = count
        self._drop_last = drop_last

    def __iter__(self) -> Iterator[list[Sequence[int]]]:
        batches = iter(self._batches)
        while group := list(islice(batches, self._count)):
            if len(group) == self._count or not self._drop_last:
                yield group

    def __len__(self) -> int:
        # Any sampler may be endless and have no length: torch says so itself.
        batches = len(self._batches)  # type: ignore[arg-type]
        return group_count(batches, self._count, self._drop_last)


class GroupedSamples(Dataset[Any]):
    """A data set of lists of samples. Each list is a batch."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __getitem__(self, batch: Sequence[int]) -> list[Any]:
        several = getattr(self._dataset, "__getitems__", None)
        if several is not None:
            return list(several(batch))
        return [self._dataset[index] for index in batch]

    def __getattr__(self, name: str) -> Any:
        # For a worker_init_fn, which finds this as the data set of its worker.
        # Without `_dataset`, this is an object that is being unpickled.
        if name == "_dataset":
            raise AttributeError(name)
        return getattr(self._dataset, name)


class GroupedCollate:
    """Makes each list of samples a batch, and joins the batches to one.

    A collate_fn may pad a batch to its full size, so it gets one at a time.
    """

    def __init__(self, collate: Callable[[list[Any]], Any] | None) -> None:
        self._collate = collate

    def __call__(self, group: list[list[Any]]) -> Any:
        if self._collate is None:
            return default_collate([sample for samples in group for sample in samples])
        return joined([self._collate(samples) for samples in group])


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
            whole = joined(waiting)
            yield convert(whole, lambda tensor: tensor[:size])
            waiting = [convert(whole, lambda tensor: tensor[size:])]
            have -= size
    if have and not drop_last:
        yield joined(waiting)


def _length(batch: Any) -> int:
    lengths = {len(t) if t.dim() else None for t in tensors_of(batch)}
    if len(lengths) != 1 or None in lengths:
        raise Error(
            "What a data set yields cannot be made into batches of another size: the "
            "tensors of one item must all have a first dimension of the same length, "
            f"but theirs are {sorted(map(str, lengths))}."
        )
    return int(lengths.pop() or 0)


def joined(batches: list[Any]) -> Any:
    """Return one batch with the samples of several of the same structure.

    Raises:
        Error: They hold text or numbers, and not the same ones.
    """
    if len(batches) == 1:
        return batches[0]
    first, *others = [leaves_of(batch, (str, bytes, int, float)) for batch in batches]
    for other in others:
        if other != first:
            raise Error(
                "Several batches cannot be joined to one: besides tensors they hold "
                f"{first} and {other}. Only tensors may differ between batches: return "
                "what differs as tensors."
            )
    parts = zip(*(tensors_of(batch) for batch in batches), strict=True)
    joined = iter([torch.cat(tensors) for tensors in parts])
    return convert(batches[0], lambda _: next(joined))
