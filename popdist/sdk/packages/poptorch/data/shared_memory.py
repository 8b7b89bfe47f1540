"""Tensors that several processes have."""

import torch


def move_to_shared(tensor: torch.Tensor) -> torch.Tensor:
    """Move a tensor into shared memory; return it."""
    tensor.share_memory_()  # type: ignore[no-untyped-call]
    return tensor
