"""Batches out of smaller ones.

Any: samples and batches are tensors in all structures.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch

from ..errors import Error
from .nesting import convert, leaves_of, tensors_of


def group_count(items: int, size: int, drop_last: bool) -> int:
    """Return how many groups of a size there are; a smaller last one may count."""
    groups, remainder = divmod(items, size)
    return groups + (remainder > 0 and not drop_last)


def join_each(batches: Iterable[Any], count: int, drop_last: bool) -> Iterator[Any]:
    """Return batches that are each made of so many others.

    Args:
        batches: Batches of any size.
        count: How many are joined to one.
        drop_last: Whether the last one is left out if it is made of less.
    """
    return map(joined, _groups(batches, count, drop_last))


class JoinedIndices:
    """A sampler of batches that are each made of several batches of another one."""

    def __init__(
        self, batches: Iterable[Sequence[int]], count: int, drop_last: bool
    ) -> None:
        """Take over a sampler; the other arguments are join_each()'s."""
        self._batches, self._count, self._drop_last = batches, count, drop_last

    def __iter__(self) -> Iterator[list[int]]:
        for group in _groups(self._batches, self._count, self._drop_last):
            yield [index for batch in group for index in batch]

    def __len__(self) -> int:
        # Any: as torch, this leaves it to a sampler without a length to say so.
        batches: Any = self._batches
        return group_count(len(batches), self._count, self._drop_last)


def _groups(batches: Iterable[Any], count: int, drop_last: bool) -> Iterator[list[Any]]:
    remaining = iter(batches)
    while group := list(islice(remaining, count)):
        if len(group) == count or not drop_last:
            yield group


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
            have -= size
            waiting = [convert(whole, lambda tensor: tensor[size:])] if have else []
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
