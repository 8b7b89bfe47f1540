import random

import pytest

from poprun.vipu.model import Block
from poprun.vipu.rules import buddy


class SetOfBlocks:
    """Free blocks in memory: what the database does, without its order."""

    def __init__(self, *blocks: Block) -> None:
        self.blocks = set(blocks)

    def smallest(self, size: int) -> Block | None:
        fitting = [block for block in self.blocks if block.size >= size]
        return min(fitting, key=lambda b: (b.size, b.first), default=None)

    def largest(self) -> int:
        return max((block.size for block in self.blocks), default=0)

    def all(self) -> list[Block]:
        return sorted(self.blocks)

    def has(self, block: Block) -> bool:
        return block in self.blocks

    def add(self, block: Block) -> None:
        assert block not in self.blocks
        self.blocks.add(block)

    def remove(self, block: Block) -> None:
        self.blocks.remove(block)


def test_the_smallest_block_that_fits_is_halved() -> None:
    free = SetOfBlocks(Block(0, 4), Block(16, 16))

    assert buddy.allocate(free, 8) == Block(16, 8)
    assert free.blocks == {Block(0, 4), Block(24, 8)}


def test_nothing_is_given_that_is_not_there() -> None:
    free = SetOfBlocks(Block(0, 4), Block(8, 4))

    assert buddy.allocate(free, 8) is None
    assert free.blocks == {Block(0, 4), Block(8, 4)}


def test_freed_blocks_merge_with_their_buddies_only() -> None:
    free = SetOfBlocks(Block(8, 8))
    buddy.release(free, Block(4, 4))

    assert free.blocks == {Block(4, 4), Block(8, 8)}

    buddy.release(free, Block(0, 4))

    assert free.blocks == {Block(0, 16)}


@pytest.mark.parametrize(
    ("wanted", "left"),
    [
        (Block(0, 16), set()),
        (Block(4, 4), {Block(0, 4), Block(8, 8)}),
        (Block(15, 1), {Block(14, 1), Block(12, 2), Block(8, 4), Block(0, 8)}),
    ],
)
def test_a_certain_block_is_cut_out(wanted: Block, left: set[Block]) -> None:
    free = SetOfBlocks(Block(0, 16))

    assert buddy.allocate_at(free, wanted)
    assert free.blocks == left


def test_a_block_in_use_is_not_cut_out() -> None:
    free = SetOfBlocks(Block(0, 4))

    assert not buddy.allocate_at(free, Block(4, 4))
    assert not buddy.allocate_at(free, Block(0, 8))
    assert free.blocks == {Block(0, 4)}


def test_parts_of_several_ilds_are_in_the_same_place_of_each() -> None:
    free = SetOfBlocks(Block(0, 64), Block(68, 4), Block(72, 8))

    assert buddy.allocate_across(free, 4, 2, 64) == (Block(4, 4), Block(68, 4))
    assert buddy.allocate_across(free, 8, 2, 64) == (Block(8, 8), Block(72, 8))
    assert buddy.allocate_across(free, 4, 2, 64) is None


def test_whole_ilds_are_next_to_each_other() -> None:
    free = SetOfBlocks(Block(0, 64), Block(128, 128))

    assert buddy.allocate_across(free, 64, 2, 64) == (Block(128, 64), Block(192, 64))


@pytest.mark.parametrize(
    ("first", "end", "blocks"),
    [
        (0, 64, [Block(0, 64)]),
        (0, 12, [Block(0, 8), Block(8, 4)]),
        (4, 24, [Block(4, 4), Block(8, 8), Block(16, 8)]),
        (5, 5, []),
    ],
)
def test_a_range_is_cut_into_aligned_powers_of_two(
    first: int, end: int, blocks: list[Block]
) -> None:
    assert list(buddy.aligned_blocks(first, end)) == blocks


def test_whatever_is_freed_in_any_order_is_whole_again() -> None:
    chance = random.Random(9)
    free = SetOfBlocks(Block(0, 256))
    taken = []
    while (block := buddy.allocate(free, 2 ** chance.randrange(5))) is not None:
        taken.append(block)
    chance.shuffle(taken)
    for block in taken:
        buddy.release(free, block)

    assert free.blocks == {Block(0, 256)}
