"""The optimizer that runs on the device: the user's, as it was when it was set.

A change of the user's optimizer has no effect on a model until setOptimizer().
Any: hyperparameters and entries of a state are numbers, tuples, booleans and tensors.
"""

import copy
import logging
from collections.abc import Container
from typing import Any

import torch
from torch.optim import Optimizer

from popdist.torch.replicated.gradients import SHORT_DTYPES, Row

from ..._logging import logger
from ...errors import Error
from ...optim import Optimizer as ExtendedOptimizer
from ...optim.device_state import complete_state
from .optimizer_checks import device_class
from .optimizer_log import describe


class WeightUpdate:
    """Applies gradients to weights by a snapshot of an optimizer.

    The state, such as momenta, is shared with the user's optimizer. Weights of 16 bits
    are updated in float32 and rounded once.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        names: dict[torch.Tensor, str],
        grouped: Container[str],
    ) -> None:
        """Take over an optimizer.

        Args:
            optimizer: The optimizer, of which a copy updates the weights.
            names: The names of the model's parameters.
            grouped: Those that have a row for each group of replicas.
        """
        self._names, self._grouped = names, grouped
        self._wide: dict[torch.Tensor, torch.Tensor] = {}
        # The parameters that it updates, and their names.
        self.parameters: list[torch.Tensor] = []
        self.names: list[str] = []
        self._device: Any = None
        self._logged: list[str] = []
        self.optimizer = optimizer
        self.set_optimizer(optimizer)

    def set_optimizer(self, optimizer: Optimizer) -> None:
        """Use an optimizer from now on, as it is at this moment.

        Momenta are kept if the new optimizer has none and the same parameters.

        Raises:
            Error: It changes an attribute that is marked as constant.
        """
        if self._device is not None:
            _check_constants(self._device, optimizer)
            _keep_state(self.optimizer, optimizer)
            complete_state(optimizer)
        factor = self.loss_factor
        self.optimizer = optimizer
        if factor != 1 and getattr(optimizer, "_loss_factor", None) is None:
            self.loss_factor = factor
        self._log()
        self._device = _copy_of(optimizer)
        self.parameters = [
            parameter
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter.requires_grad
        ]
        self.names = [self._names.get(p, "?") for p in self.parameters]
        self._wide = {
            parameter: self._wide[parameter]
            if parameter in self._wide
            else parameter.detach().float()
            for parameter in self.parameters
            if parameter.dtype in SHORT_DTYPES
        }
        for group in self._device.param_groups:
            group["params"] = [self._wide.get(p, p) for p in group["params"]]
        # Without an attribute for it, torch's optimizers ignore this.
        self._device.weights_with_rows = {
            self._wide.get(parameter, parameter)
            for parameter, name in zip(self.parameters, self.names, strict=True)
            if name in self._grouped
        }
        self._share_state()

    def _log(self) -> None:
        """Log the device's optimizer, if it has changed."""
        if logger.isEnabledFor(logging.DEBUG):
            lines = describe(self.optimizer)
            for line in lines if lines != self._logged else ():
                logger.debug("%s", line)
            self._logged = lines

    @property
    def loss_factor(self) -> float:
        """By what automatic loss scaling multiplies; it is kept in the optimizer."""
        return float(getattr(self.optimizer, "_loss_factor", None) or 1)

    @loss_factor.setter
    def loss_factor(self, factor: float) -> None:
        optimizer: Any = self.optimizer
        optimizer._loss_factor = factor

    @property
    def loss_scaling(self) -> float:
        """By what the loss is multiplied, and gradients divided."""
        own = float(getattr(self._device, "loss_scaling", None) or 1)
        return own * self.loss_factor

    @torch.no_grad()
    def step(self, gradients: Row, scale: float) -> None:
        """Update the weights once.

        Args:
            scale: A factor for the gradients.
        """
        if getattr(self.optimizer, "_is_state_new", False):
            self._device.state = type(self.optimizer.state)(dict)
            self._share_state()
        existing = [gradient for gradient in gradients if gradient is not None]
        if scale != 1 and existing:
            torch._foreach_mul_(existing, scale)
        for parameter, wide in self._wide.items():
            wide.copy_(parameter)
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            self._wide.get(parameter, parameter).grad = gradient
        try:
            # Not the bound one, which schedulers replace in the user's optimizer.
            type(self._device).step(self._device)
        finally:
            for parameter in self.parameters:
                self._wide.get(parameter, parameter).grad = None
        for parameter, wide in self._wide.items():
            parameter.copy_(wide)
        if self._wide:
            self._share_state()
        # By this, schedulers know that their step() comes after the optimizer's.
        self.optimizer._opt_called = True  # type: ignore[attr-defined]

    def _share_state(self) -> None:
        """Let the device's optimizer share the state of the user's."""
        if isinstance(self.optimizer, ExtendedOptimizer):
            self.optimizer._is_state_new = False
        if not self._wide:
            self._device.state = self.optimizer.state
            return
        device_state = self._device.state
        for parameter in self.parameters:
            wide = self._wide.get(parameter, parameter)
            if wide in device_state:
                self.optimizer.state[parameter] = device_state[wide]
            elif parameter in self.optimizer.state:
                device_state[wide] = {
                    name: _widened(value)
                    for name, value in self.optimizer.state[parameter].items()
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
