"""The optimizers that torch.optim has, too, with PopTorch's further arguments."""

from typing import Any

import torch
from torch import optim

from .extended import (
    Closure,
    Optimizer,
    Parameters,
    clip_gradients,
    given_only,
)
from .moments import update_of


class SGD(Optimizer, optim.SGD):
    """Stochastic gradient descent, with momentum if given."""

    def __init__(
        self,
        params: Parameters,
        lr: float | None = None,
        momentum: float | None = None,
        dampening: float | None = None,
        weight_decay: float | None = None,
        nesterov: bool | None = None,
        maximize: bool | None = None,
        foreach: bool | None = None,
        differentiable: bool | None = None,
        loss_scaling: float | None = None,
        velocity_scaling: float | None = None,
        use_combined_accum: bool | None = None,
        accum_type: torch.dtype | None = None,
        velocity_accum_type: torch.dtype | None = None,
    ) -> None:
        """Make the optimizer.

        Args:
            velocity_scaling: By what the velocity is multiplied while it is kept,
                which changes no result.
            use_combined_accum: Whether gradients and velocity share an accumulator;
                recorded only. velocity_accum_type needs separate ones.

        Raises:
            ValueError: The arguments contradict each other.
        """
        if use_combined_accum and velocity_accum_type is not None:
            raise ValueError(
                "velocity_accum_type is given, but with use_combined_accum there is "
                "no velocity by itself. Give accum_type, or use_combined_accum=False."
            )
        if not use_combined_accum and velocity_scaling is not None:
            _check_positive("velocity_scaling", velocity_scaling)
        given = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
        }
        optim.SGD.__init__(
            self,
            params,
            **given_only(
                **given,
                maximize=maximize,
                foreach=foreach,
                differentiable=differentiable,
            ),
        )
        self.use_combined_accum = bool(use_combined_accum)
        self.velocity_scaling = velocity_scaling or 1.0
        self._extend(
            given,
            {"loss_scaling": loss_scaling, "velocity_scaling": velocity_scaling},
            {"accum_type": accum_type, "velocity_accum_type": velocity_accum_type},
        )


class _Adaptive(Optimizer):
    """What Adam and AdamW have in common."""

    max_grad_norm: float | None

    def _set_up(
        self,
        given: dict[str, Any],
        bias_correction: bool,
        loss_scaling: float | None,
        max_grad_norm: float | None,
        types: dict[str, torch.dtype | None],
    ) -> None:
        self.max_grad_norm = max_grad_norm
        self.bias_correction = bias_correction
        extras = {"loss_scaling": loss_scaling, "max_grad_norm": max_grad_norm}
        self._extend(given, extras, types)

    def _step_without_correction(self, optimizer: optim.Optimizer) -> None:
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
        given = _adaptive_arguments(lr, betas, eps, weight_decay)
        optim.Adam.__init__(
            self,
            params,
            **given_only(
                **given,
                amsgrad=amsgrad,
                foreach=foreach,
                maximize=maximize,
                capturable=capturable,
                differentiable=differentiable,
                fused=fused,
            ),
        )
        types = {
            "accum_type": accum_type,
            "first_order_momentum_accum_type": first_order_momentum_accum_type,
            "second_order_momentum_accum_type": second_order_momentum_accum_type,
        }
        self._set_up(given, bias_correction, loss_scaling, max_grad_norm, types)

    @torch.no_grad()
    # Any: torch.optim's step() may return what its closure returns.
    def step(self, closure: Closure = None) -> Any:
        """Update the weights once."""
        clip_gradients(self, self.max_grad_norm)
        if self.bias_correction:
            return optim.Adam.step(self, closure)
        return self._step_without_correction(self)


class AdamW(_Adaptive, optim.AdamW):
    """Adam, with weight decay beside the gradient."""

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
        loss_scaling: float | None = None,
        bias_correction: bool = True,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
        max_grad_norm: float | None = None,
    ) -> None:
        given = _adaptive_arguments(lr, betas, eps, weight_decay)
        optim.AdamW.__init__(
            self,
            params,
            **given_only(
                **given,
                amsgrad=amsgrad,
                maximize=maximize,
                foreach=foreach,
                capturable=capturable,
                differentiable=differentiable,
            ),
        )
        types = {
            "accum_type": accum_type,
            "first_order_momentum_accum_type": first_order_momentum_accum_type,
            "second_order_momentum_accum_type": second_order_momentum_accum_type,
        }
        self._set_up(given, bias_correction, loss_scaling, max_grad_norm, types)

    @torch.no_grad()
    # Any: torch.optim's step() may return what its closure returns.
    def step(self, closure: Closure = None) -> Any:
        """Update the weights once."""
        clip_gradients(self, self.max_grad_norm)
        if self.bias_correction:
            return optim.AdamW.step(self, closure)
        return self._step_without_correction(self)


class RMSprop(Optimizer, optim.RMSprop):
    """RMSprop, as torch has it or as TensorFlow has it."""

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
            use_tf_variant: Whether eps is added within the square root, and the
                learning rate is part of the momentum, as in TensorFlow.
        """
        given = {
            "lr": lr,
            "alpha": alpha,
            "eps": eps,
            "weight_decay": weight_decay,
            "momentum": momentum,
        }
        optim.RMSprop.__init__(
            self,
            params,
            **given_only(
                **given,
                centered=centered,
                foreach=foreach,
                maximize=maximize,
                differentiable=differentiable,
            ),
        )
        self.use_tf_variant = bool(use_tf_variant)
        self._extend(
            given,
            {"loss_scaling": loss_scaling},
            {
                "accum_type": accum_type,
                "first_order_momentum_accum_type": first_order_momentum_accum_type,
                "second_order_momentum_accum_type": second_order_momentum_accum_type,
            },
        )

    @torch.no_grad()
    # Any: torch.optim's step() may return what its closure returns.
    def step(self, closure: Closure = None) -> Any:
        """Update the weights once."""
        if not self.use_tf_variant:
            return optim.RMSprop.step(self, closure)
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    _tensorflow_step(weight, self.state[weight], group)
        return None


# Any: an entry of an optimizer's state or groups.
def _tensorflow_step(
    weight: torch.Tensor, state: dict[str, Any], group: dict[str, Any]
) -> None:
    gradient = weight.grad
    if gradient is None:
        return
    if group["weight_decay"]:
        gradient = gradient.add(weight, alpha=group["weight_decay"])
    if not state:
        for name in ("square_avg", "momentum_buffer", "grad_avg"):
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


# Any: arguments of any type.
def _adaptive_arguments(
    lr: float | None,
    betas: tuple[float, float] | None,
    eps: float | None,
    weight_decay: float | None,
) -> dict[str, Any]:
    return {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}


def _check_positive(name: str, value: float) -> None:
    if value <= 0:
        raise ValueError(f"{name} is {value}, but must be above 0.")
