"""RMSprop with PopTorch's further arguments."""

import torch
from torch import Tensor, optim

from .device_state import Group, State
from .extended import Optimizer, Parameters


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

    @property
    def _steps_as_torch(self) -> bool:
        return not self.use_tf_variant

    def _update(
        self, weight: Tensor, gradient: Tensor, state: State, group: Group
    ) -> None:
        """Update a weight as TensorFlow does."""
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
