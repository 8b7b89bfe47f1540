"""poptorch.custom_op: operators of the program's own, by functions for the CPU."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from popdist.sdk.custom_ops import CustomOpError
from popdist.sdk.torch_custom_ops import compute_custom_op

from .errors import Error

_FLOAT32 = torch.finfo(torch.float32)


# Any: attributes are numbers, texts, and lists of either.
def custom_op(
    inputs: Sequence[torch.Tensor],
    name: str,
    domain: str,
    domain_version: int,
    example_outputs: Sequence[torch.Tensor],
    attributes: Mapping[str, Any] | None = None,
) -> list[torch.Tensor]:
    """Return the outputs of a custom operator, from its function for the CPU.

    Args:
        inputs: The operator's inputs.
        name: The name in popdist.sdk.register_custom_op().
        domain: The domain of its name, which selects nothing here.
        domain_version: The version of that domain.
        example_outputs: One tensor for each output. PopTorch's operators may return
            other shapes.
        attributes: The second argument of the function.

    Raises:
        ValueError: An attribute has a wrong type.
        Error: There is no function, or it returns another number of outputs.
    """
    given = dict(attributes or {})
    _check_attributes(given)
    try:
        outputs = compute_custom_op(name, inputs, given)
    except CustomOpError as error:
        raise Error(str(error)) from error
    if len(outputs) != len(example_outputs):
        raise Error(
            f"The function of the custom operator {name} returned {len(outputs)} "
            f"outputs, but example_outputs has {len(example_outputs)}. Make them the "
            "same."
        )
    return outputs


def custom_operation(
    inputs: list[torch.Tensor],
    name: str,
    domain: str,
    domain_version: int,
    num_outputs: int,
    outputs: list[torch.Tensor],
    attributes: str,
) -> list[torch.Tensor]:
    """Return the outputs of a custom operator without attributes.

    Raises:
        Error: There are attributes, or custom_op() raises it.
    """
    if attributes:
        raise Error(
            "torch.ops.poptorch.custom_operation cannot look up attributes by "
            f"{attributes!r}. Call poptorch.custom_op(), which takes them."
        )
    return custom_op(inputs, name, domain, domain_version, outputs)


def _check_attributes(attributes: Mapping[str, Any]) -> None:
    """Raise PopTorch's error for an attribute of an unsupported type or value."""
    for key, value in attributes.items():
        if not isinstance(key, str):
            raise ValueError("All attribute keys must be strings.")
        if not isinstance(value, float | int | str | list | tuple):
            raise ValueError(
                "Attribute values must be floats, ints, strings or a list/tuple of "
                f"float, ints of strings. {key} is a {type(value).__name__}."
            )
        items = value if isinstance(value, list | tuple) else [value]
        if not all(isinstance(item, type(items[0])) for item in items):
            raise ValueError(
                "The types in a list/tuple attribute must all be the same. "
                f"{key} is {value!r}."
            )
        for item in (key, *items):
            if isinstance(item, str) and not item.isascii():
                raise ValueError(f"{item} contains non-ASCII characters.")
            if isinstance(item, float) and abs(item) > _FLOAT32.max:
                side = "low" if item < 0 else "high"
                raise Error(f"{item:g} is too {side} for a Popart float attribute.")
