"""LAMB: Adam's update, scaled layer by layer to the norm of the weights."""

import torch
from torch import Tensor
from torch.optim import Optimizer as TorchOptimizer

from .device_state import Group, State
from .extended import Optimizer, Parameters, given_only
from .moments import update_of

_DEFAULTS = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}


class LAMB(Optimizer, TorchOptimizer):
    """Layer-wise adaptive moments for batch training.

    The update u of a weight w is Adam's plus weight_decay * w; w changes by
    lr * norm(w) / norm(u) * u, where norm(w) is at most max_weight_norm.
    """

    _steps_as_torch = False

    def __init__(
        self,
        params: Parameters,
        lr: float | None = None,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        bias_correction: bool = True,
        loss_scaling: float | None = None,
        max_weight_norm: float | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
    ) -> None:
        arguments = locals()
        torch_arguments = {name: arguments[name] for name in _DEFAULTS}
        defaults = {
            **_DEFAULTS,
            **given_only(torch_arguments),
            "bias_correction": bias_correction,
            "max_weight_norm": max_weight_norm,
        }
        TorchOptimizer.__init__(self, params, defaults)
        self._extend(torch_arguments, arguments)

    def _update(
        self, weight: Tensor, gradient: Tensor, state: State, group: Group
    ) -> None:
        update = update_of(gradient, state, group)
        if group["weight_decay"]:
            update.add_(weight, alpha=group["weight_decay"])
        weight_norm, update_norm = weight.norm(), update.norm()
        if group["max_weight_norm"] is not None:
            weight_norm = weight_norm.clamp(max=group["max_weight_norm"])
        both = (weight_norm > 0) & (update_norm > 0)
        ratio = torch.where(both, weight_norm / update_norm, 1.0)
        weight.sub_(update.mul_(ratio), alpha=group["lr"])
