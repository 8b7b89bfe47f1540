"""PopTorch's optimizers: torch.optim's with further arguments, and LAMB."""

from collections.abc import Container, Iterable
from typing import Any

import torch
from torch import Tensor, optim

from .device_state import Group, State
from .extended import Optimizer

_ADAM = """
loss_scaling bias_correction accum_type first_order_momentum_accum_type
second_order_momentum_accum_type max_grad_norm
"""


class SGD(Optimizer, optim.SGD):
    """Stochastic gradient descent, with momentum if given.

    `velocity_scaling` is a factor of the stored velocity, which changes no result.
    `use_combined_accum` says whether gradients and velocity share an accumulator, and
    is recorded only; `velocity_accum_type` needs separate ones. `max_grad_norm` is the
    norm that all gradients together may have at most.
    """

    _torch = optim.SGD
    _arguments = """
    lr momentum dampening weight_decay nesterov maximize foreach differentiable
    loss_scaling velocity_scaling use_combined_accum accum_type velocity_accum_type
    max_grad_norm
    """

    def _extend(self, arguments: Group, torch_arguments: Group) -> None:
        scaling, combined = (
            arguments[name] for name in ("velocity_scaling", "use_combined_accum")
        )
        if combined and arguments["velocity_accum_type"] is not None:
            raise ValueError(
                "velocity_accum_type is given, but with use_combined_accum there is "
                "no velocity by itself. Give accum_type, or use_combined_accum=False."
            )
        if not combined and scaling is not None and scaling <= 0:
            raise ValueError(f"velocity_scaling is {scaling}, but must be above 0.")
        super()._extend(arguments, torch_arguments)
        if combined:
            for group in (self.defaults, *self.param_groups):
                group.setdefault(
                    "velocity_scaling", 1.0 if scaling is None else scaling
                )
        self.use_combined_accum = bool(combined)
        self.velocity_scaling = scaling or 1.0


class _Adaptive(Optimizer):
    """The common part of Adam and AdamW."""

    bias_correction: bool

    def _extend(self, arguments: Group, torch_arguments: Group) -> None:
        super()._extend(arguments, torch_arguments)
        self.bias_correction = arguments["bias_correction"] in (True, None)

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
        update = _moments(gradient, state, {**group, "bias_correction": False})
        weight.sub_(update, alpha=lr)


class Adam(_Adaptive, optim.Adam):
    """Adam, with weight decay as a part of the gradient."""

    _torch = optim.Adam
    _arguments = f"""
    lr betas eps weight_decay amsgrad foreach maximize capturable differentiable fused
    {_ADAM}
    """


class AdamW(_Adaptive, optim.AdamW):
    """Adam, with weight decay beside the gradient."""

    _torch = optim.AdamW
    _arguments = f"""
    lr betas eps weight_decay amsgrad maximize foreach capturable differentiable fused
    {_ADAM}
    """


class RMSprop(Optimizer, optim.RMSprop):
    """RMSprop, as torch has it or, with `use_tf_variant`, as TensorFlow has it.

    There the mean of squares starts with ones, eps is added within the square root, and
    the learning rate is part of the momentum.
    """

    _torch = optim.RMSprop
    _arguments = """
    lr alpha eps weight_decay momentum centered foreach maximize differentiable
    loss_scaling accum_type first_order_momentum_accum_type
    second_order_momentum_accum_type use_tf_variant
    """

    def _extend(self, arguments: Group, torch_arguments: Group) -> None:
        super()._extend(arguments, torch_arguments)
        self.use_tf_variant = bool(arguments["use_tf_variant"])

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


class _PlainLAMB(optim.Optimizer):
    """LAMB with its own arguments alone, as an optimizer of torch would have them."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        bias_correction: bool = True,
        max_weight_norm: float | None = None,
    ) -> None:
        defaults = {n: v for n, v in locals().items() if n not in ("self", "params")}
        optim.Optimizer.__init__(self, params, defaults)


class LAMB(Optimizer, _PlainLAMB):
    """Layer-wise adaptive moments for batch training.

    The update u of a weight w is Adam's plus weight_decay * w; w changes by
    lr * norm(w) / norm(u) * u, where norm(w) is at most max_weight_norm.
    """

    _torch = _PlainLAMB
    _steps_as_torch = False
    # The weights with a row for each group of replicas.
    weights_with_rows: Container[Tensor] = ()
    _arguments = """
    lr betas eps weight_decay bias_correction loss_scaling max_weight_norm accum_type
    first_order_momentum_accum_type second_order_momentum_accum_type
    """

    def _update(
        self, weight: Tensor, gradient: Tensor, state: State, group: Group
    ) -> None:
        update = _moments(gradient, state, group)
        if group["weight_decay"]:
            update.add_(weight, alpha=group["weight_decay"])
        norm = _norm_of_rows if weight in self.weights_with_rows else torch.norm
        weight_norm, update_norm = norm(weight), norm(update)
        if group["max_weight_norm"] is not None:
            weight_norm = weight_norm.clamp(max=group["max_weight_norm"])
        both = (weight_norm > 0) & (update_norm > 0)
        ratio = torch.where(both, weight_norm / update_norm, 1.0)
        weight.sub_(update.mul_(ratio), alpha=group["lr"])


def _norm_of_rows(tensor: Tensor) -> Tensor:
    """Return the norm of each row, in the dimensions of the tensor."""
    norms: Tensor = tensor.reshape(len(tensor), -1).norm(dim=1)
    return norms.reshape(-1, *[1] * (tensor.dim() - 1))


def _moments(gradient: Tensor, state: State, group: Group) -> Tensor:
    """Return Adam's update of a weight, not yet times the learning rate.

    The state has the names of torch.optim.Adam's: step, exp_avg, exp_avg_sq.
    """
    if not state:
        state["step"] = torch.zeros(())
        state["exp_avg"] = torch.zeros_like(gradient)
        state["exp_avg_sq"] = torch.zeros_like(gradient)
    first: Tensor = state["exp_avg"]
    second: Tensor = state["exp_avg_sq"]
    beta1, beta2 = group["betas"]
    state["step"] += 1
    first.lerp_(gradient, 1 - beta1)
    second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    if not group["bias_correction"]:
        return first.div(second.sqrt() + group["eps"])
    step = state["step"].item()
    root = (second / (1 - beta2**step)).sqrt_().add_(group["eps"])
    corrected: Tensor = (first / (1 - beta1**step)).div_(root)
    return corrected
