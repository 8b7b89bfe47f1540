"""The training of a model: the optimizer that runs on the device, and its gradients.

The device's optimizer is the user's, as it was when it was set: a change of the user's
has no effect on a model until setOptimizer(). Any: hyperparameters and entries of a
state are numbers, tuples, booleans and tensors.
"""

import copy
import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch.optim import Optimizer

from popdist.replicated.members import Members
from popdist.torch.replicated.trainer import SHORT_DTYPES, Row, Trainer

from ..._logging import logger
from ...errors import Error
from ...optim import Optimizer as ExtendedOptimizer
from ...optim.device_state import complete_state
from ..run_settings import RunSettings
from .anchors import Anchors
from .loss_scaler import LossScaler
from .optimizer_checks import device_class
from .optimizer_log import describe


class Training:
    """Sums the gradients of a model's replicas, and updates its weights.

    The optimizer's state, such as momenta, is shared with the user's optimizer. Weights
    of 16 bits are updated in float32 and rounded once.
    """

    def __init__(
        self,
        settings: RunSettings,
        members: Members,
        optimizer: Optimizer,
        names: Mapping[torch.Tensor, str],
        anchors: Anchors,
        *,
        half: bool,
        running_means: bool,
        group_counts: Mapping[str, int],
    ) -> None:
        """Take over an optimizer.

        Args:
            settings: The replicas and micro-batches.
            members: The instances that train the same model.
            optimizer: The user's.
            names: The names of the model's parameters.
            anchors: Keeps gradients and weights for the program.
            half: Whether the model computes in float16.
            running_means: Whether a mean of gradients is one of its group alone.
            group_counts: How many groups of replicas each grouped parameter has.
        """
        self._settings, self._members = settings, members
        self._names, self._group_counts = names, group_counts
        self._anchors, self._half = anchors, half
        # Further factors of means of gradients of grouped parameters.
        self._factors = group_counts if running_means else {}
        scaling = settings.loss_scaling if half else None
        self._scaler = LossScaler(scaling) if scaling is not None else None
        # How many micro-batches all replicas of the job run for one update.
        self._micro_batches = settings.gradient_accumulation * members.replicas
        self._wide: dict[torch.Tensor, torch.Tensor] = {}
        # The parameters that are updated.
        self._parameters: list[torch.Tensor] = []
        self._rows: list[tuple[int, torch.dtype]] = []
        self._device: Any = None
        self._logged: list[str] = []
        self._optimizer: Any = optimizer
        self.set_optimizer(optimizer)

    def set_optimizer(self, optimizer: Optimizer) -> None:
        """Use an optimizer from now on, as it is at this moment.

        Momenta are kept if the new optimizer has none and the same parameters.

        Raises:
            Error: It changes an attribute that is marked as constant.
        """
        if self._device is not None:
            _check_constants(self._device, optimizer)
            _keep_state(self._optimizer, optimizer)
            complete_state(optimizer)
        factor = self._loss_factor
        self._optimizer = optimizer
        if factor != 1 and getattr(optimizer, "_loss_factor", None) is None:
            self._optimizer._loss_factor = factor
        if logger.isEnabledFor(logging.DEBUG):
            lines = describe(optimizer)
            for line in lines if lines != self._logged else ():
                logger.debug("%s", line)
            self._logged = lines
        self._device = _copy_of(optimizer)
        parameters = [
            parameter
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter.requires_grad
        ]
        # A module's half() changes the dtype of the same parameters.
        rows = [(id(parameter), parameter.dtype) for parameter in parameters]
        if not rows or rows != self._rows:
            self._parameters, self._rows = parameters, rows
            self.trainer = Trainer(
                *(self._settings, self._members, parameters),
                [self._names.get(parameter, "?") for parameter in parameters],
                *(self._update_weights, self._factors),
            )
        self._wide = {
            parameter: self._wide[parameter]
            if parameter in self._wide
            else parameter.detach().float()
            for parameter in parameters
            if parameter.dtype in SHORT_DTYPES
        }
        for group in self._device.param_groups:
            group["params"] = [self._wide.get(p, p) for p in group["params"]]
        # LAMB reads it; torch's optimizers ignore it.
        self._device.weights_with_rows = {
            self._wide.get(parameter, parameter)
            for parameter, name in self._names.items()
            if name in self._group_counts
        }
        self._share_state()

    @property
    def _loss_factor(self) -> float:
        """By what automatic loss scaling multiplies; it is kept in the optimizer."""
        return float(getattr(self._optimizer, "_loss_factor", None) or 1)

    @property
    def _loss_scaling(self) -> float:
        """By what the loss is multiplied, and gradients divided."""
        own = float(getattr(self._device, "loss_scaling", None) or 1)
        return own * self._loss_factor

    def backward(self, loss: torch.Tensor) -> None:
        """Run the backward pass of a micro-batch."""
        # Gradients of float16 would vanish if the loss were divided; others are
        # cheaper to divide so.
        scale = self._loss_scaling if self._half else 1 / self.trainer.divisor
        self.trainer.backward(loss, scale)

    def _update_weights(self, total: Row) -> None:
        """Update the weights by the gradients of all replicas of the job."""
        scale, factor = self._loss_scaling, 1.0
        if self._scaler is not None:
            factor = self._scaler.next_factor(
                self._parameters, total, self._micro_batches, scale
            )
        self._step(total, 1 / (self.trainer.divisor * scale) if self._half else 1.0)
        self._anchors.keep(self._parameters, self.trainer.names, total, scale)
        if factor != 1:
            self._optimizer._loss_factor = self._loss_factor * factor

    @torch.no_grad()
    def _step(self, gradients: Row, scale: float) -> None:
        """Update the weights once, by gradients that are multiplied by a scale."""
        if getattr(self._optimizer, "_is_state_new", False):
            self._device.state = type(self._optimizer.state)(dict)
            self._share_state()
        existing = [gradient for gradient in gradients if gradient is not None]
        if scale != 1 and existing:
            torch._foreach_mul_(existing, scale)
        for parameter, wide in self._wide.items():
            wide.copy_(parameter)
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            self._wide.get(parameter, parameter).grad = gradient
        try:
            # Not the bound one, which schedulers replace in the user's optimizer.
            type(self._device).step(self._device)
        finally:
            for parameter in self._parameters:
                self._wide.get(parameter, parameter).grad = None
        for parameter, wide in self._wide.items():
            parameter.copy_(wide)
        if self._wide:
            self._share_state()
        # By this, schedulers know that their step() comes after the optimizer's.
        self._optimizer._opt_called = True

    def _share_state(self) -> None:
        """Let the device's optimizer share the state of the user's."""
        if isinstance(self._optimizer, ExtendedOptimizer):
            self._optimizer._is_state_new = False
        if not self._wide:
            self._device.state = self._optimizer.state
            return
        device_state = self._device.state
        for parameter in self._parameters:
            wide = self._wide.get(parameter, parameter)
            if wide in device_state:
                self._optimizer.state[parameter] = device_state[wide]
            elif parameter in self._optimizer.state:
                device_state[wide] = {
                    name: _widened(value)
                    for name, value in self._optimizer.state[parameter].items()
                }


def _widened(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype in SHORT_DTYPES:
        return value.float()
    return value


def _copy_of(optimizer: Optimizer) -> Optimizer:
    """Return an optimizer of the same parameters with its own hyperparameters.

    It is of the class of PopTorch's or torch's that the user's is derived from: the
    device has no step() of the user's.
    """
    cls = device_class(optimizer)
    copied: Optimizer = cls.__new__(cls)
    copied.__dict__.update(optimizer.__dict__)
    copied.__dict__.pop("step", None)
    copied.param_groups = [
        {
            name: list(value) if name == "params" else copy.deepcopy(value)
            for name, value in group.items()
        }
        for group in optimizer.param_groups
    ]
    copied.state = type(optimizer.state)(dict)
    return copied


def _keep_state(old: Optimizer, new: Optimizer) -> None:
    """Give an optimizer without state what the one before has of its parameters."""
    if new is old or new.state or type(new) is not type(old):
        return
    for group in new.param_groups:
        for parameter in group["params"]:
            if parameter in old.state:
                new.state[parameter] = old.state[parameter]


def _check_constants(device: Optimizer, new: Optimizer) -> None:
    """Raise Error if an optimizer changes what was compiled in as a constant."""
    attrs = getattr(new, "variable_attrs", None)
    if attrs is None or device_class(new) is not type(device):
        return
    groups = zip(device.param_groups, new.param_groups, strict=False)
    for index, (before, now) in enumerate(groups):
        for name in before.keys() & now.keys() - {"params"}:
            value = now[name]
            if attrs.isConstant(name) and before[name] != value:
                raise Error(
                    f"The optimizer's {name} is constant, because it had its default "
                    "value or was marked so, and cannot change from "
                    f"{before[name]} to {value} in group {index} once the model is "
                    f'compiled. Call variable_attrs.markAsVariable("{name}") on the '
                    "optimizer before the model is compiled."
                )
