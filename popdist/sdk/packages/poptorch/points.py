"""Operations on sets of points that PopTorch adds to torch, computed on the CPU."""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch

from .errors import Error


def nearest(
    x: torch.Tensor,
    y: torch.Tensor,
    batch_x: torch.Tensor | None = None,
    batch_y: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return for each point of x the index of the nearest point of y in its batch."""
    x = x.view(-1, 1) if x.dim() == 1 else x
    y = y.view(-1, 1) if y.dim() == 1 else y
    distances = torch.cdist(x.float(), y.float())
    if batch_x is not None and batch_y is not None:
        apart = batch_x[:, None] != batch_y[None, :]
        distances = distances.masked_fill(apart, float("inf"))
    return distances.argmin(dim=1)


def fps(
    src: torch.Tensor, ptr: Sequence[int], ratio: float, random_start: bool = False
) -> torch.Tensor:
    """Return the indices of points that lie far from each other, part by part.

    Args:
        src: A point in each row.
        ptr: The first points of the parts, and the end of the last part.
        ratio: The share of the points of a part that is chosen.
        random_start: Whether the first one is chosen at random.

    Raises:
        Error: The parts or the ratio are of another type, or there is no part.
    """
    if not isinstance(ptr, list) or len(ptr) < 2:
        raise Error(f"ptr is {ptr!r}, but must be a list of at least 2 integers.")
    if not isinstance(ratio, float):
        raise Error(f"ratio is {ratio!r}, but must be a float.")
    chosen = []
    for begin, end in pairwise(ptr):
        points = src[begin:end].detach().float().flatten(1)
        distances = torch.full((end - begin,), float("inf"))
        last = int(torch.randint(end - begin, ())) if random_start else 0
        for _ in range(math.ceil(ratio * (end - begin))):
            chosen.append(begin + last)
            apart = (points - points[last]).square().sum(1)
            distances = torch.minimum(distances, apart)
            last = int(distances.argmax())
    return torch.tensor(chosen, dtype=torch.int64)
