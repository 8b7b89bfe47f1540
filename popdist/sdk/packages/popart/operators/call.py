"""The arguments of an operator's conversion to torch, and facts about the operator.

Any: attributes are numbers, strings, lists of these and tensors.
"""

import inspect
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor

# The results of a conversion: one output, or all of them.
Outputs = Tensor | Sequence[Tensor]


@dataclass(frozen=True, slots=True)
class Call:
    """One use of an operator: its inputs, and its attributes with their defaults."""

    inputs: Sequence[Tensor | None]
    attributes: Mapping[str, Any]
    training: bool
    # How many outputs the node names.
    outputs: int
    # Whether nothing counts but the shapes of the outputs.
    for_shapes: bool = False

    def __getitem__(self, index: int) -> Tensor:
        """Return an input that must be there."""
        value = self.inputs[index]
        if value is None:
            raise IndexError(index)
        return value

    def has(self, index: int) -> bool:
        """Return whether an optional input is there."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute."""
        return self.attributes.get(name, default)


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
    def of(
        cls,
        function: Callable[..., Outputs],
        constants: tuple[int, ...] = (),
        refusal: Callable[[Form], str] = lambda form: "",
    ) -> Self:
        """Return an operator that calls a function.

        Inputs are passed in their order. Parameters that have names of attributes get
        these attributes. A parameter `call` gets the whole call.
        """
        names = _parameters(function)

        def convert(call: Call) -> Outputs:
            arguments = {n: v for n, v in call.attributes.items() if n in names}
            if "call" in names:
                arguments["call"] = call
            return function(*call.inputs, **arguments)

        return cls(convert, constants, refusal)


def _parameters(function: Callable[..., Outputs]) -> Container[str]:
    try:
        return inspect.signature(function).parameters
    # A function of torch's in C, which takes inputs alone here.
    except ValueError:
        return ()


def integers(numbers: Tensor | Sequence[int] | None) -> list[int]:
    """Return integers that are an input or, in older versions, an attribute."""
    if isinstance(numbers, Tensor):
        numbers = numbers.reshape(-1).tolist()
    return [int(number) for number in numbers or ()]


def number(value: Tensor | float) -> float:
    """Return a number that is an input or, in older versions, an attribute."""
    return value.item() if isinstance(value, Tensor) else value


def torch_pads(pads: Sequence[int]) -> list[int]:
    """Return pads as torch counts them: from the last dimension, both sides of each.

    Args:
        pads: The pads before each dimension, and then the pads after each.
    """
    rank = len(pads) // 2
    return [pads[axis + side] for axis in reversed(range(rank)) for side in (0, rank)]
