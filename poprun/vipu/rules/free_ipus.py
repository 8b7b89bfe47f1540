"""Find free IPUs: sets of IPUs are numbers with a bit for each position. Pure.

A block is a power of two of IPUs and is aligned to its size, so that a partition is
always a whole ladder, rack or row of racks. Free blocks merge as in a buddy allocator:
a free block and its free buddy are one block of twice the size.

To allocate takes the lowest of the smallest free blocks that are large enough. One
shift computes the blocks of a size from the blocks half as large, so 65 536 IPUs take
16 steps, whatever partitions there are.
"""

from collections.abc import Iterable, Iterator
from functools import cache

from poprun.vipu.model import Block


def bits_of(blocks: Iterable[Block]) -> int:
    """Return the set of the IPUs of some blocks, which do not overlap."""
    return sum(((1 << block.size) - 1) << block.first for block in blocks)


def find_blocks(
    free: int, share: int, num_ilds: int, ild_size: int
) -> tuple[Block, ...] | None:
    """Find `share` free IPUs at the same place of each of some neighbouring ILDs.

    GW-Links join IPU-Machines of the same row, so the blocks have one offset in their
    ILDs. `share` and `num_ilds` are powers of two.
    """
    if num_ilds == 1 or share == ild_size:
        first = _find_block(free, share * num_ilds)
    else:
        first = _find_across(free, share, num_ilds, ild_size)
    if first < 0:
        return None
    return tuple(Block(first=first + n * ild_size, size=share) for n in range(num_ilds))


def free_blocks(free: int) -> Iterator[Block]:
    """Iterate over the free blocks, the smallest first."""
    for size, firsts in _firsts_by_size(free, apart=True):
        while firsts:
            first = _lowest(firsts)
            yield Block(first=first, size=size)
            firsts ^= 1 << first


def largest_block(free: int) -> int:
    """Return the size of the largest free block, 0 if no IPU is free."""
    return max((size for size, _ in _firsts_by_size(free)), default=0)


def first_block(free: int, size: int) -> int:
    """Return the first IPU of the first free block of a size, also within a larger one.

    -1 if there is none.
    """
    return _lowest(dict(_firsts_by_size(free)).get(size, 0))


def _find_block(free: int, size: int) -> int:
    """Return the first IPU of the block to take `size` IPUs from; -1 without any."""
    for block_size, firsts in _firsts_by_size(free, apart=True):
        if firsts and block_size >= size:
            return _lowest(firsts)
    return -1


def _find_across(free: int, share: int, num_ilds: int, ild_size: int) -> int:
    common = dict(_firsts_by_size(free)).get(share, 0)
    distance = ild_size
    while distance < num_ilds * ild_size:  # by halves: 1, 2, 4, ... ILDs are free there
        common &= common >> distance
        distance *= 2
    first_ilds = ((1 << ild_size) - 1) * _multiples(num_ilds * ild_size, free)
    return _lowest(common & first_ilds)


def _firsts_by_size(free: int, *, apart: bool = False) -> Iterator[tuple[int, int]]:
    """Iterate over 1, 2, 4, ... and the set of the first IPUs of blocks of that size.

    Args:
        free: The IPUs that are free.
        apart: Leave out blocks that are halves of larger ones.
    """
    size, firsts = 1, free
    while firsts:
        doubled = firsts & (firsts >> size) & _multiples(2 * size, free)
        yield size, firsts & ~(doubled | doubled << size) if apart else firsts
        size, firsts = 2 * size, doubled


def _multiples(size: int, free: int) -> int:
    """Return the set of the multiples of a size up to the last free IPU."""
    return _multiples_below(size, 1 << free.bit_length().bit_length())


@cache
def _multiples_below(size: int, end: int) -> int:
    multiples = 1
    while size < end:
        multiples |= multiples << size
        size *= 2
    return multiples


def _lowest(positions: int) -> int:
    """Return the lowest position in a set, -1 if it is empty."""
    return (positions & -positions).bit_length() - 1
