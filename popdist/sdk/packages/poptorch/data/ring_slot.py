"""Memory that two processes share for one batch, which is used again and again."""

from dataclasses import dataclass
from typing import Any

import torch

from .nesting import convert
from .shared_memory import move_to_shared

ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Where a tensor is in a slot."""

    offset: int
    size: int
    dtype: torch.dtype
    shape: torch.Size


class Slot:
    """The side that writes batches. The memory grows with the largest one."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)

    # Any: batches are what programs return.
    def write(self, batch: Any) -> tuple[torch.Tensor | None, Any]:
        """Copy a batch into the slot.

        Returns:
            The memory, if it is not that of the batch before, and the batch with a
            TensorPlace for each tensor in it.
        """
        tensors: list[tuple[TensorPlace, torch.Tensor]] = []
        end = 0

        def place(tensor: torch.Tensor) -> Any:
            nonlocal end
            if tensor.layout != torch.strided or tensor.is_quantized:
                return tensor
            size = tensor.numel() * tensor.element_size()
            place = TensorPlace(end, size, tensor.dtype, tensor.shape)
            tensors.append((place, tensor))
            end += -(-size // ALIGNMENT) * ALIGNMENT
            return place

        placed = convert(batch, place)
        new = None
        if end > len(self._memory):
            self._memory = new = move_to_shared(torch.empty(end, dtype=torch.uint8))
        for where, tensor in tensors:
            view(self._memory, where).copy_(tensor.detach())
        return new, placed


def view(memory: torch.Tensor, place: TensorPlace) -> torch.Tensor:
    """Return the tensor that is in this place."""
    part = memory[place.offset : place.offset + place.size]
    return part.view(place.dtype).view(place.shape)


def read(memory: torch.Tensor, placed: Any) -> Any:
    """Return the batch that was written, with tensors that lie in the memory."""
    return convert(placed, lambda place: view(memory, place), kind=TensorPlace)
