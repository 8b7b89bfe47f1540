"""The extensions of torch's optimizers in poptorch.optim.

Any: attributes, arguments and entries of a state have all types, as in torch.optim.
"""

from collections.abc import Callable, Iterable, Mapping
from inspect import Parameter, Signature, signature
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer as TorchOptimizer

from .device_state import Group, Names, State, read_parameters, read_state, write_state
from .variable_attributes import VariableAttributes

Closure = Callable[[], float] | None
ACCUMULATION_TYPES = (None, torch.float16, torch.float32)
# Attributes beside torch.optim's that a compiled model has as constants or variables.
_ADDED = ("loss_scaling", "max_grad_norm", "max_weight_norm", "velocity_scaling")
# Entries of a state_dict that an optimizer of a model on IPUs adds.
_DEVICE_ENTRIES = ("ipu_state", "ipu_param")
_LOSS_FACTOR = "lossScaleUpdateFactor"


class Optimizer:
    """The part of poptorch.optim's optimizers that torch.optim's do not have.

    `loss_scaling` multiplies the loss and divides the gradients, which matters in
    float16 only. The types of accumulators are checked and recorded: here gradients
    and momenta of float16 weights are kept in float32.
    """

    variable_attrs: VariableAttributes
    loss_scaling: float
    # The attribute of optimizers that clip gradients.
    max_grad_norm: float | None
    # torch.optim's optimizer of the same name. Any: each has other arguments.
    _torch: ClassVar[Any]
    # The arguments after the parameters, in the order of PopTorch.
    _arguments: ClassVar[str]
    # What inspect shows; None: the signature of __init__.
    __signature__: ClassVar[Signature | None]
    # The names of the parameters in the compiled model; None without one.
    _names: Names | None = None
    # Entries of a state_dict that wait for a compiled model with their names.
    _loaded: Mapping[str, Mapping[str, torch.Tensor] | None] = {
        "ipu_state": None,
        "ipu_param": None,
    }
    # By what automatic loss scaling multiplies the loss; None without that.
    _loss_factor: float | None = None
    # Whether state was loaded that the device has not got yet.
    _is_state_new: bool = False

    def __init_subclass__(cls) -> None:
        """Let help() and inspect show the arguments of an optimizer."""
        super().__init_subclass__()
        if "_arguments" in vars(cls):
            cls.__signature__ = _signature(cls._arguments)
        elif "__init__" in vars(cls):
            cls.__signature__ = None

    def __init__(self, params: Iterable[Any], *args: Any, **kwargs: Any) -> None:
        """Make torch.optim's optimizer, and set what PopTorch adds.

        An argument that is None or missing has torch's or PopTorch's default.
        """
        try:
            bound = _signature(self._arguments).bind(params, *args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{type(self).__name__}() {error}") from None
        bound.apply_defaults()
        arguments = bound.arguments
        del arguments["params"]
        torch_names = signature(self._torch).parameters
        torch_arguments = {n: v for n, v in arguments.items() if n in torch_names}
        given = {n: v for n, v in torch_arguments.items() if v is not None}
        self._torch.__init__(self, params, **given)
        self._extend(arguments, torch_arguments)

    def _extend(self, arguments: Group, torch_arguments: Group) -> None:
        """Set what PopTorch adds.

        Args:
            arguments: All arguments.
            torch_arguments: The arguments of torch.optim's optimizer.
        """
        for name, dtype in arguments.items():
            if not name.endswith("accum_type"):
                continue
            if dtype not in ACCUMULATION_TYPES:
                raise ValueError(
                    f"{name} is {dtype}, but must be torch.float16 or torch.float32."
                )
            setattr(self, name, dtype or torch.float32)
        loss_scaling = arguments["loss_scaling"]
        self.loss_scaling = 1.0 if loss_scaling is None else float(loss_scaling)
        if self.loss_scaling <= 0:
            raise ValueError(f"loss_scaling is {loss_scaling}, but must be above 0.")
        if "max_grad_norm" in arguments:
            self.max_grad_norm = arguments["max_grad_norm"]
        added = {name: arguments[name] for name in _ADDED if name in arguments}
        self.variable_attrs = VariableAttributes({**torch_arguments, **added})

    @property
    def _steps_as_torch(self) -> bool:
        """Whether torch.optim's step() runs, or _update() for each weight."""
        return True

    @torch.no_grad()
    def step(self, closure: Closure = None) -> Any:
        """Update the weights once."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        optimizer: Any = self
        clip_gradients(optimizer, getattr(self, "max_grad_norm", None))
        if self._steps_as_torch:
            self._torch.step(self)
            return loss
        for group in optimizer.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    gradient = -weight.grad if group.get("maximize") else weight.grad
                    self._update(weight, gradient, optimizer.state[weight], group)
        return loss

    def _update(
        self, weight: Tensor, gradient: Tensor, state: State, group: Group
    ) -> None:
        """Update one weight by its gradient, which stays as it is."""
        raise NotImplementedError

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
            names: The names of the model's parameters.
        """
        self._names = names
        state = self._loaded["ipu_state"]
        if state is not None:
            optimizer: Any = self
            write_state(optimizer, names, state)
            if _LOSS_FACTOR in state:
                self._loss_factor = state[_LOSS_FACTOR].item()
        self._loaded = dict.fromkeys(_DEVICE_ENTRIES)

    def state_dict(self) -> dict[str, Any]:
        """Return torch's state_dict, with ipu_state and ipu_param.

        Until a model with this optimizer is compiled, both are as they were loaded, or
        None.
        """
        own = self._loaded
        if self._names is not None:
            optimizer: Any = self
            state = read_state(optimizer, self._names)
            if self._loss_factor is not None:
                state[_LOSS_FACTOR] = torch.tensor(self._loss_factor)
            scaling = self.loss_scaling
            parameters = read_parameters(optimizer, self._names, scaling)
            own = {"ipu_state": state, "ipu_param": parameters}
        return {**own, **super().state_dict()}  # type: ignore[misc]

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
        optimizer: Any = self
        groups = zip(optimizer.param_groups, state["param_groups"], strict=True)
        for group, saved in groups:
            for parameter, key in zip(group["params"], saved["params"], strict=True):
                for name, value in state["state"].get(key, {}).items():
                    if isinstance(value, torch.Tensor):
                        optimizer.state[parameter][name] = value.clone()
        self._loaded = {name: state_dict[name] for name in _DEVICE_ENTRIES}
        if self._names is not None:
            self.enter_device(self._names)
        self._is_state_new = True


def _signature(names: str) -> Signature:
    """Return the signature of an optimizer with these arguments after `params`."""
    kind = Parameter.POSITIONAL_OR_KEYWORD
    arguments = [Parameter(name, kind, default=None) for name in names.split()]
    return Signature([Parameter("params", kind), *arguments])


def clip_gradients(optimizer: TorchOptimizer, max_norm: float | None) -> None:
    """Scale all gradients down together until their norm is at most this."""
    gradients = [
        parameter.grad
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.grad is not None
    ]
    if gradients and max_norm not in (None, float("inf")):
        norm = torch.nn.utils.get_total_norm(gradients)
        torch._foreach_mul_(gradients, (max_norm / (norm + 1e-6)).clamp(max=1.0))
