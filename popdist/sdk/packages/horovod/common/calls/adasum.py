"""Adasum: a sum in which the parts that gradients have in common count once."""

from collections.abc import Sequence
from typing import Any


# Any: arrays of whatever framework.
def adasum(rows: Sequence[Any]) -> Any:
    """Combine the ranks' tensors pairwise, as a binary tree over the ranks does.

    They are of float64, and their number is a power of two. The result is equal on all
    ranks.
    """
    level = list(rows)
    while len(level) > 1:
        level = [
            _combine(left, right)
            for left, right in zip(level[::2], level[1::2], strict=True)
        ]
    return level[0]


def _combine(left: Any, right: Any) -> Any:
    product = (left * right).sum()
    squares = (left * left).sum(), (right * right).sum()
    left_part, right_part = (
        1 - product / (2 * square) if square else 1.0 for square in squares
    )
    return left_part * left + right_part * right
