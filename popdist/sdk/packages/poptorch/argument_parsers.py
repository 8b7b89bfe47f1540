"""Arguments of a model of types that PopTorch does not know by itself.

Any: arguments have the user's types.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils._pytree import SUPPORTED_NODES, register_pytree_node

from .errors import Error


class ICustomArgParser:
    """How to find the tensors in an argument of some type, and to put others in."""

    def yieldTensors(self, struct: Any) -> Iterable[torch.Tensor]:
        """Yield the tensors of an argument, always in the same order."""
        raise NotImplementedError

    def reconstruct(
        self, original_structure: Any, tensor_iterator: Iterator[torch.Tensor]
    ) -> Any:
        """Return an argument like the original one with these tensors."""
        raise NotImplementedError


class _Original:
    """An argument that others are made like; all of one type are equal."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Original) and type(self.value) is type(other.value)

    def __hash__(self) -> int:
        return hash(type(self.value))


def registerCustomArgParser(arg_type: type, parser: ICustomArgParser) -> None:
    """Let models take arguments of this type.

    Raises:
        Error: The type has a parser, or the parser is none.
    """
    if not isinstance(parser, ICustomArgParser):
        raise Error(f"{parser!r} is not a poptorch.ICustomArgParser.")
    if arg_type in SUPPORTED_NODES:
        raise Error(f"A parser of arguments of {arg_type} is registered already.")
    register_pytree_node(
        arg_type,
        lambda value: (list(parser.yieldTensors(value)), _Original(value)),
        lambda tensors, original: parser.reconstruct(original.value, iter(tensors)),
    )
