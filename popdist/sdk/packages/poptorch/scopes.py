"""Scopes that tell an IPU's compiler about the operations in them.

They change no result, and are checked only. Any: attributes and the arguments of
functions have several types.
"""

from collections.abc import Callable
from typing import Any, Self

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


def _recorded(name: str) -> Callable[["MultiConv", Any], "MultiConv"]:
    """Return a method of MultiConv that records a value, or one of each convolution."""

    def record(self: "MultiConv", value: Any) -> "MultiConv":
        self.settings[name] = value
        return self

    return record


class MultiConv(_Scope):
    """Convolutions that an IPU may compute at the same time."""

    def __init__(self) -> None:
        self.settings: dict[str, object] = {}

    def planType(self, value: MultiConvPlanType) -> Self:
        """Record whether the convolutions run at once."""
        if not isinstance(value, MultiConvPlanType):
            raise Error(f"{value!r} is not a poptorch.MultiConvPlanType.")
        self.settings["planType"] = value
        return self

    # The proportion of temporary memory of each convolution.
    availableMemoryProportions = _recorded("availableMemoryProportions")
    # The type of the partials of each convolution.
    partialsTypes = _recorded("partialsTypes")
    # How many tiles each convolution has at least.
    perConvReservedTiles = _recorded("perConvReservedTiles")
    # How far from the best plan a convolution may be.
    cycleBackOff = _recorded("cycleBackOff")
    # Whether convolutions start on different tiles.
    enableConvDithering = _recorded("enableConvDithering")


class CPU:
    """A function or layer that runs on the host within a model."""

    def __init__(self, layer_to_call: Callable[..., Any] | nn.Module, ID: str) -> None:
        self._layer_to_call = layer_to_call
        self._ID = ID

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function, without automatic casts: the host makes none."""
        with autocast(enabled=False):
            return self._layer_to_call(*args, **kwargs)
