"""Adam and AdamW with PopTorch's further arguments."""

from typing import Any, ClassVar

import torch
from torch import optim

from .extended import Closure, Optimizer, Parameters, clip_gradients, given_only
from .moments import update_of


class _Adaptive(Optimizer):
    """What Adam and AdamW have in common."""

    max_grad_norm: float | None
    # torch.optim's optimizer of the same name. Any: of one of two classes.
    _torch: ClassVar[Any]

    # Any: arguments of any type.
    def _set_up(
        self,
        params: Parameters,
        given: dict[str, Any],
        others: dict[str, Any],
        bias_correction: bool,
        loss_scaling: float | None,
        max_grad_norm: float | None,
        types: dict[str, torch.dtype | None],
    ) -> None:
        """Make torch.optim's optimizer, and set what PopTorch adds.

        Args:
            given: Arguments that a compiled model has as constants or variables.
            others: Further arguments of torch.optim's optimizer.
            types: The types of accumulators.
        """
        self._torch.__init__(self, params, **given_only(**given, **others))
        self.max_grad_norm = max_grad_norm
        self.bias_correction = bias_correction
        extras = {"loss_scaling": loss_scaling, "max_grad_norm": max_grad_norm}
        self._extend({**given, **others}, extras, types)

    @torch.no_grad()
    # Any: torch.optim's step() may return what its closure returns.
    def step(self, closure: Closure = None) -> Any:
        """Update the weights once."""
        # Any: it is one of torch.optim, too.
        optimizer: Any = self
        clip_gradients(optimizer, self.max_grad_norm)
        if self.bias_correction:
            return self._torch.step(self, closure)
        return _step_without_correction(optimizer)


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
        given = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        others = {
            "amsgrad": amsgrad,
            "foreach": foreach,
            "maximize": maximize,
            "capturable": capturable,
            "differentiable": differentiable,
            "fused": fused,
        }
        types = {
            "accum_type": accum_type,
            "first_order_momentum_accum_type": first_order_momentum_accum_type,
            "second_order_momentum_accum_type": second_order_momentum_accum_type,
        }
        self._set_up(
            params,
            given,
            others,
            bias_correction,
            loss_scaling,
            max_grad_norm,
            types,
        )


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
        given = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        others = {
            "amsgrad": amsgrad,
            "maximize": maximize,
            "foreach": foreach,
            "capturable": capturable,
            "differentiable": differentiable,
            "fused": fused,
        }
        types = {
            "accum_type": accum_type,
            "first_order_momentum_accum_type": first_order_momentum_accum_type,
            "second_order_momentum_accum_type": second_order_momentum_accum_type,
        }
        self._set_up(
            params,
            given,
            others,
            bias_correction,
            loss_scaling,
            max_grad_norm,
            types,
        )
