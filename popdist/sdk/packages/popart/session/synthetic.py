"""Inputs that are made here instead of the program's."""

from collections.abc import Mapping

import torch

from ..enums import SyntheticDataMode
from ..step_io import StepIO
from ..tensor_info import TensorInfo


class SyntheticInputs:
    """Inputs of zeros or normal numbers; anchors go to the program as ever."""

    def __init__(self, io: StepIO, mode: SyntheticDataMode) -> None:
        self._io, self._mode = io, mode

    def begin(self, expected: Mapping[str, tuple[TensorInfo, int]]) -> None:
        """Check nothing: what the program gave is not read."""

    def read(self, name: str, info: TensorInfo, index: int) -> torch.Tensor:
        """Return an input of one micro-batch."""
        shape, dtype = info.shape(), info.element_type.torch
        if self._mode == SyntheticDataMode.Zeros:
            return torch.zeros(shape, dtype=dtype)
        # The same in every run, and integers that any label may have.
        generator = torch.Generator().manual_seed(index)
        values = torch.randn(shape, generator=generator)
        return (
            values.to(dtype)
            if dtype.is_floating_point
            else torch.zeros(shape, dtype=dtype)
        )

    def write(self, name: str, value: torch.Tensor, index: int) -> None:
        """Hand out what an anchor holds next."""
        self._io.write(name, value, index)
