"""Compression of tensors before they are reduced, and back again."""

from collections.abc import Sequence
from typing import Any, Protocol


# Any, here and below: tensors of whatever framework, and what decompress() needs.
class Compressor(Protocol):
    """What compresses a tensor, and returns with it what decompress() needs."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]: ...
    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any: ...


class NoneCompressor:
    """Leaves tensors as they are."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, None]:
        """Return the tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: None) -> Any:
        """Return the tensor itself."""
        return tensor


# What decompress() needs for each of several tensors.
Contexts = Sequence[Any]


def compress_all(
    tensors: Sequence[Any], compression: Compressor
) -> tuple[Sequence[Any], Contexts]:
    """Return tensors compressed, and what decompress_all() needs."""
    pairs = [compression.compress(tensor) for tensor in tensors]
    return [small for small, _ in pairs], [context for _, context in pairs]


def decompress_all(
    tensors: Sequence[Any], contexts: Contexts, compression: Compressor
) -> list[Any]:
    """Return tensors as they were before compress_all()."""
    return [
        compression.decompress(tensor, context)
        for tensor, context in zip(tensors, contexts, strict=True)
    ]
