"""RMSprop with PopTorch's further arguments."""

from typing import Any

import torch
from torch import optim

from .extended import Closure, Optimizer, Parameters, call_closure


class RMSprop(Optimizer, optim.RMSprop):
    """RMSprop, as torch has it or as TensorFlow has it."""

    _torch = optim.RMSprop

    def __init__(
        self,
        params: Parameters,
        lr: float | None = None,
        alpha: float | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        momentum: float | None = None,
        centered: bool | None = None,
        foreach: bool | None = None,
        maximize: bool | None = None,
        differentiable: bool | None = None,
        loss_scaling: float | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
        use_tf_variant: bool | None = None,
    ) -> None:
        """Make the optimizer.

        Args:
            use_tf_variant: Whether the mean of squares starts with ones, eps is added
                within the square root, and the learning rate is part of the momentum,
                as in TensorFlow.
        """
        self._set_up(locals())
        self.use_tf_variant = bool(use_tf_variant)

    @torch.no_grad()
    # Any: torch.optim's step() may return what its closure returns.
    def step(self, closure: Closure = None) -> Any:
        """Update the weights once."""
        if not self.use_tf_variant:
            return optim.RMSprop.step(self, closure)
        loss = call_closure(closure)
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    _tensorflow_step(weight, self.state[weight], group)
        return loss


# Any: an entry of an optimizer's state or groups.
def _tensorflow_step(weight: Any, state: dict[str, Any], group: dict[str, Any]) -> None:
    gradient: torch.Tensor = weight.grad
    if group["weight_decay"]:
        gradient = gradient.add(weight, alpha=group["weight_decay"])
    if not state:
        state["square_avg"] = torch.ones_like(gradient)
        for name in ("momentum_buffer", "grad_avg"):
            state[name] = torch.zeros_like(gradient)
    alpha, square = group["alpha"], state["square_avg"]
    square.mul_(alpha).addcmul_(gradient, gradient, value=1 - alpha)
    variance = square
    if group["centered"]:
        mean = state["grad_avg"].lerp_(gradient, 1 - alpha)
        variance = square - mean * mean
    change = gradient / (variance + group["eps"]).sqrt_() * group["lr"]
    if group["momentum"]:
        change = state["momentum_buffer"].mul_(group["momentum"]).add_(change)
    weight.sub_(change)
