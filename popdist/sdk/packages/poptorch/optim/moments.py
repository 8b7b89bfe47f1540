"""Adam's moments of gradients, with or without the correction of their bias."""

import torch

from .device_state import Group, State


def update_of(gradient: torch.Tensor, state: State, group: Group) -> torch.Tensor:
    """Return Adam's update of a weight, not yet times the learning rate.

    The state has the names of torch.optim.Adam's: step, exp_avg, exp_avg_sq.
    """
    if not state:
        state["step"] = torch.zeros(())
        state["exp_avg"] = torch.zeros_like(gradient)
        state["exp_avg_sq"] = torch.zeros_like(gradient)
    first: torch.Tensor = state["exp_avg"]
    second: torch.Tensor = state["exp_avg_sq"]
    beta1, beta2 = group["betas"]
    state["step"] += 1
    first.lerp_(gradient, 1 - beta1)
    second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    if not group["bias_correction"]:
        return first.div(second.sqrt() + group["eps"])
    step = state["step"].item()
    root = (second / (1 - beta2**step)).sqrt_().add_(group["eps"])
    corrected: torch.Tensor = (first / (1 - beta1**step)).div_(root)
    return corrected
