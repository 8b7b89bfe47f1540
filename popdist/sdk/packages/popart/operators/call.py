"""The arguments of an operator's conversion to torch, and facts about the operator.

Any: attributes are numbers, strings, lists of these and tensors.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch

# The results of a conversion: one output, or all of them.
Outputs = torch.Tensor | Sequence[torch.Tensor]


@dataclass(frozen=True, slots=True)
class Call:
    """One use of an operator: its inputs, and its attributes with their defaults."""

    inputs: Sequence[torch.Tensor | None]
    attributes: Mapping[str, Any]
    training: bool
    # How many outputs the node names.
    outputs: int
    # Whether nothing counts but the shapes of the outputs.
    for_shapes: bool = False

    def __getitem__(self, index: int) -> torch.Tensor:
        """Return an input that must be there."""
        value = self.inputs[index]
        if value is None:
            raise IndexError(index)
        return value

    def has(self, index: int) -> bool:
        """Return whether an optional input is there."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def optional(self, index: int) -> torch.Tensor | None:
        """Return an optional input."""
        return self.inputs[index] if self.has(index) else None

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute."""
        return self.attributes.get(name, default)

    def numbers(self, index: int, attribute: str) -> list[int] | None:
        """Return integers that are an input or, in older versions, an attribute."""
        if self.has(index):
            return [int(number) for number in self[index].reshape(-1).tolist()]
        numbers = self.get(attribute)
        return None if numbers is None else [int(number) for number in numbers]


@dataclass(frozen=True, slots=True)
class Form:
    """In which form a node uses an operator."""

    # The names of the inputs; empty for those that are left out.
    inputs: Sequence[str]
    outputs: int
    attributes: Mapping[str, Any]
    # The version of ONNX's operators.
    version: int

    def has(self, index: int) -> bool:
        """Return whether an optional input is there."""
        return index < len(self.inputs) and bool(self.inputs[index])


@dataclass(frozen=True, slots=True)
class Operator:
    """How an operator is computed."""

    convert: Callable[[Call], Outputs]
    # The inputs that have to be constants: the conversion reads their values.
    constants: tuple[int, ...] = ()
    # Returns what of a form is not available; an empty text for nothing.
    refusal: Callable[[Form], str] = lambda form: ""

    @classmethod
    def of(cls, function: Callable[..., torch.Tensor]) -> Self:
        """Return an operator that gives its inputs to a function, in their order."""
        return cls(lambda call: function(*call.inputs))


def axis_of(call: Call, name: str = "axis", default: int = 0) -> int:
    """Return an axis of input 0, counted from the first one."""
    axis = int(call.get(name, default))
    return axis + call[0].dim() if axis < 0 else axis


def torch_pads(pads: Sequence[int]) -> list[int]:
    """Return pads as torch counts them: from the last dimension, both sides of each.

    Args:
        pads: The pads before each dimension, and then the pads after each.
    """
    rank = len(pads) // 2
    return [pads[axis + side] for axis in reversed(range(rank)) for side in (0, rank)]
