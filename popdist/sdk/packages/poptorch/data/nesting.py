"""Tensors in tuples, lists, dictionaries and registered classes, however deep."""

import copy
from collections.abc import Callable, MutableMapping
from typing import Any

import torch
from torch.utils._pytree import SUPPORTED_NODES


# Any: the structures are what programs return.
def convert(
    nested: Any,
    change: Callable[[Any], Any],
    kind: type | tuple[type, ...] = torch.Tensor,
) -> Any:
    """Return the same structure with each tensor replaced; order is always the same.

    Args:
        nested: The structure.
        change: Returns what replaces a tensor.
        kind: The type that is replaced instead of tensors.
    """

    def converted(each: Any) -> Any:
        return convert(each, change, kind)

    if isinstance(nested, kind):
        return change(nested)
    if isinstance(nested, tuple) and hasattr(nested, "_fields"):
        return type(nested)(*map(converted, nested))
    if isinstance(nested, tuple):
        return type(nested)(map(converted, nested))
    if isinstance(nested, list | MutableMapping):
        # A copy, as classes of these may be made in many ways.
        changed: Any = copy.copy(nested)
        keys = range(len(nested)) if isinstance(nested, list) else list(nested)
        for key in keys:
            changed[key] = converted(nested[key])
        return changed
    # registerCustomArgParser enters classes there.
    if registered := SUPPORTED_NODES.get(type(nested)):
        parts, context = registered.flatten_fn(nested)
        return registered.unflatten_fn(map(converted, parts), context)
    return nested


def leaves_of(nested: Any, kind: type | tuple[type, ...]) -> list[Any]:
    """Return what a structure holds of a kind, in order."""
    leaves: list[Any] = []

    def add(leaf: Any) -> Any:
        leaves.append(leaf)
        return leaf

    convert(nested, add, kind)
    return leaves


def tensors_of(nested: Any) -> list[torch.Tensor]:
    """Return the tensors of a structure, in order."""
    return leaves_of(nested, torch.Tensor)
