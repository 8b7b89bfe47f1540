"""Stochastic gradient descent with PopTorch's further arguments."""

import torch
from torch import optim

from .extended import Optimizer, Parameters


class SGD(Optimizer, optim.SGD):
    """Stochastic gradient descent, with momentum if given."""

    _torch = optim.SGD

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
        max_grad_norm: float | None = None,
    ) -> None:
        """Make the optimizer.

        Args:
            velocity_scaling: A factor of the stored velocity. It changes no result.
            use_combined_accum: Whether gradients and velocity share an accumulator;
                recorded only. velocity_accum_type needs separate ones.
            max_grad_norm: The norm that all gradients together may have at most.

        Raises:
            ValueError: The arguments contradict each other.
        """
        if use_combined_accum and velocity_accum_type is not None:
            raise ValueError(
                "velocity_accum_type is given, but with use_combined_accum there is "
                "no velocity by itself. Give accum_type, or use_combined_accum=False."
            )
        scaling = 1.0 if velocity_scaling is None else velocity_scaling
        if not use_combined_accum and scaling <= 0:
            raise ValueError(
                f"velocity_scaling is {velocity_scaling}, but must be above 0."
            )
        self._set_up(locals())
        if use_combined_accum:
            for group in (self.defaults, *self.param_groups):
                group.setdefault("velocity_scaling", scaling)
        self.use_combined_accum = bool(use_combined_accum)
        self.velocity_scaling = velocity_scaling or 1.0
