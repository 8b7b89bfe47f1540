"""Adasum: a sum in which the parts that gradients have in common count once."""

import torch
from torch import Tensor


def adasum(tensors: list[Tensor]) -> Tensor:
    """Combine the ranks' tensors pairwise, as a binary tree over the ranks does.

    The number of tensors is a power of two. The scalar products are computed in
    float64, and the result is equal on all ranks.
    """
    dtype = tensors[0].dtype
    level = [tensor.double() for tensor in tensors]
    while len(level) > 1:
        level = [
            _combine(left, right)
            for left, right in zip(level[::2], level[1::2], strict=True)
        ]
    return level[0].to(dtype)


def _combine(left: Tensor, right: Tensor) -> Tensor:
    product = torch.sum(left * right)
    squares = torch.sum(left * left), torch.sum(right * right)
    left_part, right_part = (
        1 - product / (2 * square) if square else torch.ones_like(product)
        for square in squares
    )
    return left_part * left + right_part * right
