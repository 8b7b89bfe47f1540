"""ipu_state and ipu_param: an optimizer's state by the names that IPUs have for it.

Any: entries of an optimizer's groups and of its state have several types.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import optim

# The names of tensors of a weight on the device, and what torch calls them.
_SGD = {"Accl1": "momentum_buffer"}
_RMSPROP = {"Accl1": "square_avg", "Accl2": "momentum_buffer", "Accl3": "grad_avg"}
_ADAM = {"Accl1": "exp_avg", "Accl2": "exp_avg_sq", "Step": "step"}

# Attributes of groups, by the names that PopART has for them.
_NUMBERS = {
    "lr": "learningRate",
    "weight_decay": "weightDecay",
    "momentum": "momentum",
    "dampening": "dampening",
    "eps": "eps",
    "alpha": "alpha",
    "max_weight_norm": "maxWeightNorm",
}

Names = Mapping[torch.Tensor, str]
Group = Mapping[str, Any]
State = dict[str, Any]


def read_state(optimizer: optim.Optimizer, names: Names) -> dict[str, torch.Tensor]:
    """Return the momenta of all weights, those at their beginning too."""
    tensors = {}
    for group, weight, name in _weights(optimizer, names):
        entry = _complete(optimizer, group, weight)
        for prefix, key in _tensors_of(optimizer, group).items():
            tensors[f"{prefix}___{name}"] = entry[key]
    return tensors


def write_state(
    optimizer: optim.Optimizer, names: Names, tensors: Mapping[str, torch.Tensor]
) -> None:
    """Set the momenta that a dictionary of read_state has; others stay as they are."""
    for group, weight, name in _weights(optimizer, names):
        loaded = {}
        for prefix, key in _tensors_of(optimizer, group).items():
            # Older releases of PopTorch name the weights after a module around them.
            for tensor_name in (f"{prefix}___model.{name}", f"{prefix}___{name}"):
                if tensor_name in tensors:
                    loaded[key] = tensors[tensor_name].clone()
        if loaded:
            entry = _complete(optimizer, group, weight)
            optimizer.state[weight] = {**entry, **loaded}


def complete_state(optimizer: optim.Optimizer) -> None:
    """Add the momenta of options that were off when the state began.

    SGD needs none: its step() begins a momentum at any time.
    """
    for group in optimizer.param_groups if isinstance(optimizer, optim.RMSprop) else ():
        for weight in group["params"]:
            if weight in optimizer.state:
                entry = _complete(optimizer, group, weight)
                optimizer.state[weight].update(entry)


def read_parameters(
    optimizer: optim.Optimizer, names: Names, loss_scaling: float
) -> dict[str, torch.Tensor]:
    """Return the numbers that an optimizer updates each weight by."""
    numbers = {"lossScaling_FLOAT": loss_scaling}
    for group, _, name in _weights(optimizer, names):
        for prefix, number in _numbers_of(optimizer, group, loss_scaling).items():
            numbers[f"{prefix}___specific___{name}"] = number
    return {name: torch.tensor(float(number)) for name, number in numbers.items()}


def _weights(
    optimizer: optim.Optimizer, names: Names
) -> Iterator[tuple[Group, torch.Tensor, str]]:
    for group in optimizer.param_groups:
        for weight in group["params"]:
            if weight in names:
                yield group, weight, names[weight]


def _tensors_of(optimizer: optim.Optimizer, group: Group) -> dict[str, str]:
    if isinstance(optimizer, optim.SGD):
        return _SGD if group["momentum"] else {}
    if not isinstance(optimizer, optim.RMSprop):
        return _ADAM
    used = {"square_avg": True, "momentum_buffer": group["momentum"]}
    used["grad_avg"] = group["centered"]
    return {prefix: key for prefix, key in _RMSPROP.items() if used[key]}


def _complete(
    optimizer: optim.Optimizer, group: Group, weight: torch.Tensor
) -> dict[str, Any]:
    """Return the state of a weight, with what its first step would begin with."""
    start = torch.zeros_like(weight, dtype=torch.float32, requires_grad=False)
    entry: dict[str, Any] = {
        key: torch.zeros(()) if key == "step" else start.clone()
        for key in _tensors_of(optimizer, group).values()
    }
    if isinstance(optimizer, optim.RMSprop):
        entry["step"] = torch.zeros(())
        if getattr(optimizer, "use_tf_variant", False):
            entry = {key: start.clone() for key in _RMSPROP.values()}
            entry["square_avg"].fill_(1)
    return {**entry, **optimizer.state.get(weight, {})}


def numbers_of(group: Group) -> Iterator[tuple[str, str, float]]:
    """Yield the numbers of a group: torch's attribute, PopART's name and the number."""
    for attribute, name in _NUMBERS.items():
        if group.get(attribute) is not None:
            yield attribute, name, group[attribute]
    for index, beta in enumerate(group.get("betas", ()), 1):
        yield "betas", f"beta{index}", beta


def _numbers_of(
    optimizer: optim.Optimizer, group: Group, loss_scaling: float
) -> dict[str, float]:
    if not isinstance(optimizer, optim.SGD):
        return {name: number for _, name, number in numbers_of(group)}
    rate = group["lr"] * (1 - group["dampening"])
    return {
        "scaledLearningRate0": rate / loss_scaling,
        "weightDecayScaleFactor0": 1 - rate * group["weight_decay"],
        "momentum": group["momentum"],
    }
