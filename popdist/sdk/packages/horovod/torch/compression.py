"""The compressors of torch's tensors."""

import torch
from torch import Tensor

from ..common.compression import Compressor, NoneCompressor


class FP16Compressor:
    """Turns tensors of floating point numbers into float16."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, torch.dtype | None]:
        """Return the tensor as float16, and the dtype that it had."""
        if not tensor.is_floating_point():
            return tensor, tensor.dtype
        return tensor.half(), tensor.dtype

    @staticmethod
    def decompress(tensor: Tensor, ctx: torch.dtype | None) -> Tensor:
        """Return the tensor as what it was."""
        if ctx is None or not ctx.is_floating_point:
            return tensor
        return tensor.to(ctx)


class Compression:
    """The compressors that there are."""

    none: Compressor = NoneCompressor()
    fp16: Compressor = FP16Compressor()
