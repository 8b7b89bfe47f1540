"""Compression of tensors before they are reduced, and back again."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor


class Compressor(Protocol):
    """What compresses a tensor, and returns with it what decompress() needs."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, torch.dtype | None]: ...
    @staticmethod
    def decompress(tensor: Tensor, ctx: torch.dtype | None) -> Tensor: ...


class NoneCompressor:
    """Leaves tensors as they are."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, torch.dtype | None]:
        """Return the tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Tensor, ctx: torch.dtype | None) -> Tensor:
        """Return the tensor itself."""
        return tensor


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


# What decompress() needs for each of several tensors.
Contexts = Sequence[torch.dtype | None]


def compress_all(
    tensors: Sequence[Tensor], compression: Compressor
) -> tuple[Sequence[Tensor], Contexts]:
    """Return tensors compressed, and what decompress_all() needs."""
    pairs = [compression.compress(tensor) for tensor in tensors]
    return [small for small, _ in pairs], [context for _, context in pairs]


def decompress_all(
    tensors: Sequence[Tensor], contexts: Contexts, compression: Compressor
) -> list[Tensor]:
    """Return tensors as they were before compress_all()."""
    return [
        compression.decompress(tensor, context)
        for tensor, context in zip(tensors, contexts, strict=True)
    ]
