"""What optimizers of poptorch.optim have beside those of torch.optim."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.optim import Optimizer as TorchOptimizer

from .device_state import Names, read_parameters, read_state, write_state
from .variable_attributes import VariableAttributes

# Any: what torch.optim takes as params: tensors, named ones, or groups of them.
Parameters = Iterable[Any]
Closure = Callable[[], float] | None
ACCUMULATION_TYPES = (None, torch.float16, torch.float32)
# Entries of a state_dict that an optimizer of a model on IPUs adds.
_DEVICE_ENTRIES = ("ipu_state", "ipu_param")


class Optimizer:
    """The part of poptorch.optim's optimizers that torch.optim's do not have.

    `loss_scaling` multiplies the loss and divides the gradients, which matters in
    float16 only. The types of accumulators are checked and recorded: here gradients
    and momenta of float16 weights are kept in float32.
    """

    variable_attrs: VariableAttributes
    loss_scaling: float
    # The names of the parameters in the compiled model; None without one.
    _names: Names | None = None
    # Momenta by the names of the device, for when those of parameters are known.
    _loaded_state: Mapping[str, torch.Tensor] | None = None
    # Whether state was loaded that the device has not got yet.
    _is_state_new: bool = False

    def _extend(
        self,
        given: Mapping[str, Any],
        extras: Mapping[str, Any],
        accumulation_types: Mapping[str, torch.dtype | None],
    ) -> None:
        """Set what PopTorch adds.

        Args:
            given: The arguments of torch.optim's optimizer; None for its default.
            extras: Further attributes with their values; None for the default.
            accumulation_types: The types of accumulators.
        """
        for name, dtype in accumulation_types.items():
            if dtype not in ACCUMULATION_TYPES:
                raise ValueError(
                    f"{name} is {dtype}, but must be torch.float16 or torch.float32."
                )
            setattr(self, name, dtype or torch.float32)
        loss_scaling = extras.get("loss_scaling")
        self.loss_scaling = 1.0 if loss_scaling is None else float(loss_scaling)
        if self.loss_scaling <= 0:
            raise ValueError(f"loss_scaling is {loss_scaling}, but must be above 0.")
        attributes = {**given, **extras}
        self.variable_attrs = VariableAttributes(
            attributes, [name for name, value in attributes.items() if value is None]
        )

    # Any: attributes of any type.
    def __getstate__(self) -> dict[str, Any]:
        # torch keeps no attributes but its own in copies of an optimizer.
        added = {
            name: value
            for name, value in vars(self).items()
            if not name.startswith("_") and name != "step"
        }
        return {**added, **super().__getstate__()}  # type: ignore[dict-item]

    def enter_device(self, names: Names) -> None:
        """Take part in a compiled model: state_dict() has ipu_state from now on.

        Args:
            names: Those of the model's parameters.
        """
        self._names = names
        if self._loaded_state is not None:
            write_state(_torch_optimizer(self), names, self._loaded_state)
            self._loaded_state = None

    # Any: entries of a state_dict.
    def state_dict(self) -> dict[str, Any]:
        """Return torch's state_dict, with ipu_state and ipu_param.

        Both are None until a model with this optimizer is compiled.
        """
        state, parameters = self._loaded_state, None
        if self._names is not None:
            optimizer = _torch_optimizer(self)
            state = read_state(optimizer, self._names)
            parameters = read_parameters(optimizer, self._names, self.loss_scaling)
        own = {"ipu_state": state, "ipu_param": parameters}
        return {**own, **super().state_dict()}  # type: ignore[misc]

    # Any: entries of a state_dict.
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over the state of another optimizer of this module.

        Hyperparameters take effect on a model by setOptimizer(), momenta at once.

        Raises:
            RuntimeError: It is the state of an optimizer of torch.optim.
        """
        if not all(entry in state_dict for entry in _DEVICE_ENTRIES):
            raise RuntimeError(
                "Only IPU optimizer states can be loaded onto the IPU. This one has no "
                "ipu_state and ipu_param, which the state_dict() of an optimizer of "
                "poptorch.optim has."
            )
        state = {k: v for k, v in state_dict.items() if k not in _DEVICE_ENTRIES}
        super().load_state_dict(state)  # type: ignore[misc]
        # torch has just made float16 of the moments of float16 weights.
        held: Any = self
        for group, saved in zip(held.param_groups, state["param_groups"], strict=True):
            for parameter, key in zip(group["params"], saved["params"], strict=True):
                for name, value in state["state"].get(key, {}).items():
                    if isinstance(value, torch.Tensor):
                        held.state[parameter][name] = value.clone()
        self._loaded_state = state_dict["ipu_state"]
        if self._names is not None:
            self.enter_device(self._names)
        self._is_state_new = True


def _torch_optimizer(optimizer: Any) -> TorchOptimizer:
    # Any: it is one of torch.optim, too, as all that Optimizer is a part of.
    found: TorchOptimizer = optimizer
    return found


# Any: arguments of any type.
def given_only(**arguments: Any) -> dict[str, Any]:
    """Return the arguments that are not None: torch has the defaults of the others."""
    return {name: value for name, value in arguments.items() if value is not None}


def gradients_of(optimizer: TorchOptimizer) -> list[torch.Tensor]:
    """Return all gradients that an optimizer is about to apply."""
    return [
        parameter.grad
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.grad is not None
    ]


def clip_gradients(optimizer: TorchOptimizer, max_norm: float | None) -> None:
    """Scale all gradients down together until their norm is at most this."""
    if max_norm is None or max_norm == float("inf"):
        return
    gradients = gradients_of(optimizer)
    if gradients:
        norm = torch.nn.utils.get_total_norm(gradients)
        torch._foreach_mul_(gradients, (max_norm / (norm + 1e-6)).clamp(max=1.0))
