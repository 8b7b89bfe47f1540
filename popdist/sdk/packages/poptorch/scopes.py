"""Scopes that tell an IPU's compiler about the operations in them.

They change no result, and are checked only. Any: attributes and the arguments of
functions have several types.
"""

from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import nn

from .autocasting import autocast
from .enums import MultiConvPlanType
from .errors import Error


class _Scope:
    """The operations in a `with` block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        pass


class NameScope(_Scope):
    """Operations with this prefix of their names in reports."""

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise Error(f"The name of a NameScope is {name!r}, but must be a string.")
        self.name = name


class Attribute(_Scope):
    """Operations that get these attributes of PopART."""

    def __init__(self, **attributes: Any) -> None:
        if not attributes:
            raise Error("An Attribute has no attributes. Give some by keyword.")
        self.attributes = attributes


class MultiConv(_Scope):
    """Convolutions that an IPU may compute at the same time."""

    def __init__(self) -> None:
        self.settings: dict[str, object] = {}

    def availableMemoryProportions(self, value: float | Sequence[float]) -> Self:
        """Record the proportion of temporary memory of each convolution."""
        return self._record("availableMemoryProportions", value)

    def partialsTypes(self, value: torch.dtype | Sequence[torch.dtype]) -> Self:
        """Record the type of the partials of each convolution."""
        return self._record("partialsTypes", value)

    def planType(self, value: MultiConvPlanType) -> Self:
        """Record whether the convolutions run at once."""
        if not isinstance(value, MultiConvPlanType):
            raise Error(f"{value!r} is not a poptorch.MultiConvPlanType.")
        return self._record("planType", value)

    def perConvReservedTiles(self, value: int) -> Self:
        """Record how many tiles each convolution has at least."""
        return self._record("perConvReservedTiles", value)

    def cycleBackOff(self, value: float) -> Self:
        """Record how far from the best plan a convolution may be."""
        return self._record("cycleBackOff", value)

    def enableConvDithering(self, value: bool | Sequence[bool]) -> Self:
        """Record whether convolutions start on different tiles."""
        return self._record("enableConvDithering", value)

    def _record(self, name: str, value: object) -> Self:
        self.settings[name] = value
        return self


class CPU:
    """A function or layer that runs on the host within a model."""

    def __init__(self, layer_to_call: Callable[..., Any] | nn.Module, ID: str) -> None:
        self._layer_to_call = layer_to_call
        self._ID = ID

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function, without automatic casts: the host makes none."""
        with autocast(enabled=False):
            return self._layer_to_call(*args, **kwargs)
