"""Adam and AdamW with PopTorch's further arguments."""

import torch
from torch import Tensor, optim

from .device_state import Group, State
from .extended import Optimizer, Parameters
from .moments import update_of


class _Adaptive(Optimizer):
    """The common part of Adam and AdamW."""

    bias_correction: bool

    @property
    def _steps_as_torch(self) -> bool:
        return self.bias_correction

    def _update(
        self, weight: Tensor, gradient: Tensor, state: State, group: Group
    ) -> None:
        """Update a weight by moments without bias correction."""
        decay, lr = group["weight_decay"], group["lr"]
        if decay and isinstance(self, optim.AdamW):
            weight.mul_(1 - lr * decay)
        elif decay:
            gradient = gradient.add(weight, alpha=decay)
        update = update_of(gradient, state, {**group, "bias_correction": False})
        weight.sub_(update, alpha=lr)


class Adam(_Adaptive, optim.Adam):
    """Adam, with weight decay as a part of the gradient."""

    _torch = optim.Adam

    def __init__(
        self,
        params: Parameters,
        lr: float | None = None,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        amsgrad: bool | None = None,
        foreach: bool | None = None,
        maximize: bool | None = None,
        capturable: bool | None = None,
        differentiable: bool | None = None,
        fused: bool | None = None,
        loss_scaling: float | None = None,
        bias_correction: bool = True,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
        max_grad_norm: float | None = None,
    ) -> None:
        self._set_up(locals())
        self.bias_correction = bias_correction


class AdamW(_Adaptive, optim.AdamW):
    """Adam, with weight decay beside the gradient."""

    _torch = optim.AdamW

    def __init__(
        self,
        params: Parameters,
        lr: float | None = None,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        amsgrad: bool | None = None,
        maximize: bool | None = None,
        foreach: bool | None = None,
        capturable: bool | None = None,
        differentiable: bool | None = None,
        fused: bool | None = None,
        loss_scaling: float | None = None,
        bias_correction: bool = True,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
        max_grad_norm: float | None = None,
    ) -> None:
        self._set_up(locals())
        self.bias_correction = bias_correction
