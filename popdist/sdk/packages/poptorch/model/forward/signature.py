"""The kinds of a compiled model's inputs, which are equal in all calls.

Any: a model's forward takes objects of all kinds.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
from torch.utils._pytree import tree_flatten

from ...errors import Error

# Others, which may be new objects in each call, are known by their type alone.
_CONSTANTS = bool | int | float | str | bytes | torch.dtype | torch.device | None


class MissingArgumentError(Error, TypeError):
    """A call gives no value to an argument of forward that has no default."""


class InputKind(NamedTuple):
    """The constant part of an input."""

    type: str
    # "Shape" for a tensor, "Value" for others.
    label: str
    detail: str | None

    @classmethod
    def of(cls, value: object) -> Self:
        """Return the kind of an input."""
        if isinstance(value, torch.Tensor):
            return cls(str(value.dtype), "Shape", str(value.shape))
        constant = repr(value) if isinstance(value, _CONSTANTS) else None
        return cls(type(value).__name__, "Value", constant)

    def mismatch(self, name: str, other: "InputKind") -> str:
        """Return a sentence that says how another input differs."""
        if self.type == other.type:
            label, texts = self.label, [self.detail, other.detail]
        else:
            # A tensor's dtype only matters next to another tensor.
            is_plain = self.label == other.label
            label, texts = (
                "Type",
                [
                    kind.type
                    if is_plain or kind.label == "Value"
                    else f"torch.Tensor, {kind.type}"
                    for kind in (self, other)
                ],
            )
        return f"{label} mismatch for {name}: expected {texts[0]} but got {texts[1]}."


@dataclass(frozen=True, slots=True)
class Signature:
    """The inputs of a call, by their names.

    `positional` is how many arguments stand before the end of forward's *args, 0 if it
    has none.
    """

    positional: int
    inputs: tuple[tuple[str, InputKind], ...]

    def mismatch(self, other: "Signature") -> str | None:
        """Return how the inputs of another call differ; None if they are alike."""
        if other == self:
            return None
        if other.positional != self.positional:
            return (
                "Number of positional arguments mismatch: expected "
                f"{self.positional} arguments but got {other.positional}."
            )
        expected, received = dict(self.inputs), dict(other.inputs)
        if missing := [name for name in expected if name not in received]:
            return f"Missing arguments: {', '.join(missing)}."
        if unexpected := [name for name in received if name not in expected]:
            return f"Unexpected arguments: {', '.join(unexpected)}."
        return " ".join(
            kind.mismatch(name, received[name])
            for name, kind in self.inputs
            if kind != received[name]
        )


class ForwardArguments:
    """The names of forward's arguments, however a call gives them."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        try:
            self._signature: inspect.Signature | None = inspect.signature(forward)
        except (TypeError, ValueError):
            self._signature = None

    def signature(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Signature:
        """Return the signature of a call. Defaults count like arguments.

        Raises:
            MissingArgumentError: An argument that has no default is missing.
        """
        positional, named = self._named(args, kwargs)
        leaves = (
            leaf for name, value in named.items() for leaf in _leaves(name, value)
        )
        kinds = ((name, InputKind.of(value)) for name, value in leaves)
        return Signature(positional, tuple(sorted(kinds, key=lambda item: item[0])))

    def _named(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[int, dict[str, Any]]:
        unnamed = {str(index): value for index, value in enumerate(args)}
        if self._signature is None:
            return 0, unnamed | dict(kwargs)
        try:
            bound = self._signature.bind_partial(*args, **kwargs)
        except TypeError:
            # forward itself says what is wrong.
            return 0, unnamed | dict(kwargs)
        positional = 0
        bound.apply_defaults()
        named = dict(bound.arguments)
        for index, (name, parameter) in enumerate(self._signature.parameters.items()):
            if parameter.kind is parameter.VAR_KEYWORD:
                named |= named.pop(name)
            elif parameter.kind is parameter.VAR_POSITIONAL:
                positional = index + len(named[name])
            elif name not in named:
                raise MissingArgumentError(
                    f"Mandatory parameter {name} missing: forward() takes it without a "
                    "default. Give it in the call."
                )
        return positional, named


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what an input holds, with names: `x`, `x[0]`, `key in x`, `key in x[0]`."""
    parts = tree_flatten(value, is_leaf=lambda part: part is not value)[0]
    if len(parts) == 1 and parts[0] is value:
        yield name, value
    elif isinstance(value, dict):
        for key, part in zip(value, parts, strict=True):
            yield from _leaves(f"{key} in {name}", part)
    else:
        for index, part in enumerate(parts):
            yield from _leaves(f"{name}[{index}]", part)
