"""Find free IPUs: a buddy allocator over an ordered set of free blocks. Pure.

A block is a power of two of IPUs and is aligned to its size, so that a partition is
always a whole ladder, rack or row of racks. The free blocks are kept as a set ordered
by size, then by position; no two buddies are free at once, as they are merged.

To allocate takes the lowest of the smallest blocks that are large enough and halves it
until it fits: one look-up and at most log2(n) insertions. To free merges a block with
its buddy while that is free: at most log2(n) look-ups. Neither visits the partitions
that there are, nor the IPUs. With 65 536 IPUs that is 16 steps at most.
"""

from collections.abc import Iterable, Iterator
from typing import Protocol

from poprun.vipu.model import Block


class FreeBlocks(Protocol):
    """The free blocks of one allocation, in order of size, then of position."""

    def smallest(self, size: int) -> Block | None:
        """Return the lowest of the smallest blocks with at least `size` IPUs."""

    def largest(self) -> int:
        """Return the size of the largest block, 0 if nothing is free."""

    def all(self) -> Iterable[Block]: ...
    def has(self, block: Block) -> bool: ...
    def add(self, block: Block) -> None: ...
    def remove(self, block: Block) -> None: ...


def allocate(free: FreeBlocks, size: int) -> Block | None:
    """Take a block of a power of two of IPUs; None if there is none."""
    found = free.smallest(size)
    if found is None:
        return None
    free.remove(found)
    while found.size > size:
        half = found.size // 2
        free.add(Block(found.first + half, half))
        found = Block(found.first, half)
    return found


def allocate_at(free: FreeBlocks, wanted: Block) -> bool:
    """Take one certain block; False if not all of it is free."""
    found = wanted
    while not free.has(found):
        if found.size > free.largest():
            return False
        found = _parent(found)
    free.remove(found)
    while found.size > wanted.size:
        half = found.size // 2
        lower, upper = Block(found.first, half), Block(found.first + half, half)
        found, other = (lower, upper) if wanted.first < upper.first else (upper, lower)
        free.add(other)
    return True


def release(free: FreeBlocks, block: Block) -> None:
    """Give a block back, and merge what has become whole."""
    while free.has(buddy := _buddy(block)):
        free.remove(buddy)
        block = _parent(block)
    free.add(block)


def allocate_across(
    free: FreeBlocks, share: int, num_ilds: int, ild_size: int
) -> tuple[Block, ...] | None:
    """Take `share` IPUs at the same place of several neighbouring ILDs.

    GW-Links join IPU-Machines of the same row, so the blocks have one offset in their
    racks. Takes time in proportion to the number of free blocks.
    """
    if share == ild_size:
        whole = allocate(free, share * num_ilds)
        return None if whole is None else tuple(split(whole, share))
    # Which shares of each ILD are free, one bit for each.
    free_shares: dict[int, int] = {}
    for block in free.all():
        for part in split(block, share):
            ild, offset = divmod(part.first, ild_size)
            free_shares[ild] = free_shares.get(ild, 0) | 1 << offset // share
    for ild in sorted(free_shares):
        if ild % num_ilds:
            continue
        common = free_shares[ild]
        for other in range(ild + 1, ild + num_ilds):
            common &= free_shares.get(other, 0)
        if common:
            offset = ((common & -common).bit_length() - 1) * share
            blocks = tuple(
                Block(n * ild_size + offset, share) for n in range(ild, ild + num_ilds)
            )
            for block in blocks:
                allocate_at(free, block)
            return blocks
    return None


def aligned_blocks(first: int, end: int) -> Iterator[Block]:
    """Cut a range of IPUs into as few aligned powers of two as possible."""
    while first < end:
        fits = 1 << (end - first).bit_length() - 1
        size = min(first & -first, fits) if first else fits
        yield Block(first, size)
        first += size


def split(block: Block, size: int) -> Iterator[Block]:
    """Cut a block into smaller ones; a block below that size has none."""
    for first in range(block.first, block.end - size + 1, size):
        yield Block(first, size)


def _buddy(block: Block) -> Block:
    return Block(block.first ^ block.size, block.size)


def _parent(block: Block) -> Block:
    return Block(block.first & ~block.size, block.size * 2)
