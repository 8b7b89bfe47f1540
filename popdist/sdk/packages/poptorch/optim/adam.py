"""Adam and AdamW with PopTorch's further arguments."""

from typing import Any

import torch
from torch import optim

from .extended import Closure, Optimizer, Parameters, call_closure, clip_gradients
from .moments import update_of


class _Adaptive(Optimizer):
    """What Adam and AdamW have in common."""

    bias_correction: bool

    @torch.no_grad()
    # Any: torch.optim's step() may return what its closure returns.
    def step(self, closure: Closure = None) -> Any:
        """Update the weights once."""
        # Any: it is one of torch.optim, too.
        optimizer: Any = self
        loss = call_closure(closure)
        clip_gradients(optimizer, self.max_grad_norm)
        if self.bias_correction:
            self._torch.step(self)
        else:
            _step_without_correction(optimizer)
        return loss


def _step_without_correction(optimizer: optim.Optimizer) -> None:
    """Update the weights by moments whose bias is left as it is."""
    decoupled = isinstance(optimizer, optim.AdamW)
    for group in optimizer.param_groups:
        group = {**group, "bias_correction": False}
        decay, lr = group["weight_decay"], group["lr"]
        for weight in group["params"]:
            if weight.grad is None:
                continue
            if decay and decoupled:
                weight.mul_(1 - lr * decay)
            elif decay:
                weight.grad.add_(weight, alpha=decay)
            update = update_of(weight.grad, optimizer.state[weight], group)
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
