import random

import pytest

from poprun.vipu.model import Block
from poprun.vipu.rules.free_ipus import (
    bits_of,
    find_blocks,
    free_blocks,
    largest_block,
)


def free(*blocks: Block) -> int:
    return bits_of(blocks)


def test_ipus_are_taken_from_the_smallest_block_that_fits() -> None:
    ipus = free(Block(first=0, size=4), Block(first=16, size=16))

    assert find_blocks(ipus, 8, 1, 64) == (Block(first=16, size=8),)
    assert find_blocks(ipus, 2, 1, 64) == (Block(first=0, size=2),)
    assert find_blocks(ipus, 16, 1, 64) == (Block(first=16, size=16),)


def test_of_equal_blocks_the_lowest_is_taken() -> None:
    assert find_blocks(
        free(Block(first=24, size=8), Block(first=8, size=8)), 8, 1, 64
    ) == (Block(first=8, size=8),)


def test_nothing_is_given_that_is_not_there() -> None:
    assert (
        find_blocks(free(Block(first=0, size=4), Block(first=8, size=4)), 8, 1, 64)
        is None
    )
    # 4 to 11 are 8 free IPUs, but no block.
    assert (
        find_blocks(free(Block(first=4, size=4), Block(first=8, size=4)), 8, 1, 64)
        is None
    )
    assert find_blocks(0, 1, 1, 64) is None


@pytest.mark.parametrize(
    ("ipus", "blocks"),
    [
        (range(64), [Block(first=0, size=64)]),
        (range(12), [Block(first=0, size=8), Block(first=8, size=4)]),
        (
            range(4, 24),
            [Block(first=4, size=4), Block(first=8, size=8), Block(first=16, size=8)],
        ),
        (
            range(15),
            [
                Block(first=0, size=8),
                Block(first=8, size=4),
                Block(first=12, size=2),
                Block(first=14, size=1),
            ],
        ),
        (range(5, 5), []),
        (range(5, 6), [Block(first=5, size=1)]),
    ],
)
def test_free_ipus_are_as_few_aligned_powers_of_two_as_can_be(
    ipus: range, blocks: list[Block]
) -> None:
    number = sum(1 << ipu for ipu in ipus)

    assert sorted(free_blocks(number), key=lambda block: block.first) == blocks
    assert bits_of(blocks) == number
    assert largest_block(number) == max((b.size for b in blocks), default=0)


def test_parts_of_several_ilds_are_in_the_same_place_of_each() -> None:
    ipus = free(
        Block(first=0, size=64), Block(first=68, size=4), Block(first=72, size=8)
    )

    first = find_blocks(ipus, 4, 2, 64)
    assert first == (Block(first=4, size=4), Block(first=68, size=4))
    second = find_blocks(ipus & ~bits_of(first), 8, 2, 64)
    assert second == (Block(first=8, size=8), Block(first=72, size=8))
    assert find_blocks(ipus & ~bits_of(first + second), 4, 2, 64) is None


def test_ilds_are_joined_from_a_multiple_of_their_number_on() -> None:
    ipus = free(
        Block(first=64, size=32), Block(first=128, size=32), Block(first=192, size=32)
    )

    assert find_blocks(ipus, 16, 2, 64) == (
        Block(first=128, size=16),
        Block(first=192, size=16),
    )
    assert find_blocks(ipus, 16, 4, 64) is None
    four = ipus | bits_of([Block(first=16, size=16)])
    assert find_blocks(four, 16, 4, 64) == tuple(
        Block(first=16 + 64 * n, size=16) for n in range(4)
    )


def test_whole_ilds_are_next_to_each_other() -> None:
    ipus = free(Block(first=0, size=64), Block(first=128, size=128))

    assert find_blocks(ipus, 64, 2, 64) == (
        Block(first=128, size=64),
        Block(first=192, size=64),
    )


@pytest.mark.parametrize("num_ipus", [64, 100, 256])
def test_blocks_are_those_of_an_allocator_that_looks_at_each_place(
    num_ipus: int,
) -> None:
    chance = random.Random(num_ipus)
    for _ in range(200):
        number = chance.getrandbits(num_ipus) | chance.getrandbits(num_ipus)
        size = 2 ** chance.randrange(4)
        fitting = [block for block in free_blocks(number) if block.size >= size]
        best = min(fitting, key=lambda b: (b.size, b.first), default=None)
        blocks = find_blocks(number, size, 1, 64)

        assert blocks == (best and (Block(first=best.first, size=size),))
        assert any(
            number >> first & (1 << size) - 1 == (1 << size) - 1
            for first in range(0, num_ipus, size)
        ) == (blocks is not None)
