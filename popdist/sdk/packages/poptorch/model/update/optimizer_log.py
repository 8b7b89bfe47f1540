"""Lines at level debug that show an optimizer as a compiled model takes it over."""

from collections.abc import Iterator
from inspect import signature

import torch
from torch.optim import SGD, Optimizer

from ...optim.device_state import Group, numbers_of
from .optimizer_checks import device_class

_SGD_TYPES = {
    "accum_type": "accumType",
    "velocity_accum_type": "firstOrderMomentumAccumType",
}
_TYPES = {
    "accum_type": "accumType",
    "first_order_momentum_accum_type": "firstOrderMomentumAccumType",
    "second_order_momentum_accum_type": "secondOrderMomentumAccumType",
}


def describe(optimizer: Optimizer) -> list[str]:
    """Return a line for the whole optimizer, and one for each of its groups.

    Numbers that a compiled model has as constants are marked by "(const)".
    """
    name = device_class(optimizer).__name__
    words = []
    for attribute, text in (_SGD_TYPES if name == "SGD" else _TYPES).items():
        dtype = str(getattr(optimizer, attribute, torch.float32))
        words.append(f"{text}={dtype.removeprefix('torch.')}")
    for text, number in _numbers(optimizer, optimizer.defaults):
        words.append(f"default{text[0].upper()}{text[1:]}={number}")
    words.append(f"lossScaling={_loss_scaling(optimizer)}")
    lines = [f"Updating graph optimizer with {name}: {', '.join(words)}"]
    for index, group in enumerate(optimizer.param_groups):
        texts = (f"{text}={number}" for text, number in _numbers(optimizer, group))
        lines.append(
            f"Updating group {index} optimizer with {name}: {', '.join(texts)}"
        )
    return lines


def _numbers(optimizer: Optimizer, group: Group) -> Iterator[tuple[str, str]]:
    if getattr(optimizer, "use_combined_accum", False):
        scaling = group.get("velocity_scaling", 1)
        yield "velocityScaling", _number(optimizer, "velocity_scaling", scaling)
    elif isinstance(optimizer, SGD):
        # With separate accumulators it is the loss scaling.
        yield "velocityScaling", _loss_scaling(optimizer)
    for attribute, text, number in numbers_of(group):
        yield text, _number(optimizer, attribute, number, group[attribute])


def _loss_scaling(optimizer: Optimizer) -> str:
    return _number(optimizer, "loss_scaling", getattr(optimizer, "loss_scaling", 1))


def _number(
    optimizer: Optimizer, attribute: str, number: float, value: object = None
) -> str:
    """Return a number as a text, marked if it is a constant.

    Args:
        value: The value of the attribute, if that is not the number.
    """
    attributes = getattr(optimizer, "variable_attrs", None)
    if attributes is not None:
        is_constant = attributes.isConstant(attribute)
    else:
        default = signature(device_class(optimizer)).parameters.get(attribute)
        is_constant = attribute != "lr" and (
            default is None or default.default == (number if value is None else value)
        )
    return f"{float(number):g}{' (const)' if is_constant else ''}"
