"""Tensors in the memory that the members of a group share."""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from popdist.engine.group import Group


def empty_in(group: Group, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return a new tensor in the arena of a group.

    all_reduce of such tensors, on all members, copies nothing in or out. Where the
    machine does not let memory be shared so, it is an ordinary tensor.
    """
    nbytes = prod(shape) * dtype.itemsize
    if not nbytes:
        return torch.empty(tuple(shape), dtype=dtype)
    # The tensor keeps the array, and so its place in the arena.
    memory = torch.from_numpy(group.empty(nbytes, "uint8"))
    return memory.view(dtype).view(tuple(shape))
