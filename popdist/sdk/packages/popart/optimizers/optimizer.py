"""The common part of all optimizers: values, by weight, and the update of a weight."""

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import torch

from ..errors import popart_exception
from .clipping import ClipNormSettings
from .values import OptimizerValue, OptimizerValueMap, Pair, check_constant, parse_value

State = dict[str, torch.Tensor]

# Their names have no `default` before them.
_PLAIN = ("nesterov", "maxWeightNorm")


class Optimizer:
    """The common part of optimizers: default values, and values of single weights.

    For each value a method, whose name is the value's with an s, returns it for all
    weights.
    """

    # Names as in insertSpecific(), and defaults.
    VALUES: ClassVar[Mapping[str, float]] = {}

    def __init_subclass__(cls) -> None:
        for name in cls.VALUES:
            setattr(cls, f"{name}s", _accessor(name))

    def __init__(
        self,
        values: Mapping[str, Pair],
        clip_norm_settings: Sequence[ClipNormSettings] = (),
    ) -> None:
        self._specific: dict[str, dict[str, OptimizerValue]] = {}
        self._defaults = {n: OptimizerValue(v, True) for n, v in self.VALUES.items()}
        self._loss_scaling = OptimizerValue(1.0, True)
        self.clip_norm_settings = tuple(clip_norm_settings)
        for name, pair in values.items():
            self._set_default(name, parse_value(name, pair))

    def _set_default(self, name: str, value: OptimizerValue) -> None:
        if name == "lossScaling":
            self._loss_scaling = value
            return
        short = name.removeprefix("default")
        short = short[:1].lower() + short[1:]
        if short not in self._defaults or (name == short and short not in _PLAIN):
            names = [n if n in _PLAIN else _with_default(n) for n in self._defaults]
            raise popart_exception(
                f"{type(self).__name__} has no value {name}. Choose among "
                f"{', '.join(names)} and lossScaling."
            )
        self._defaults[short] = value

    def insertSpecific(self, id: str, values: Mapping[str, Pair]) -> None:
        """Set values for one weight.

        Args:
            id: The name of the weight.
            values: Values by name, such as `{"learningRate": (0.1, False)}`.
        """
        unknown = [name for name in values if name not in self._defaults]
        if unknown:
            raise popart_exception(
                f"{type(self).__name__} has no value {unknown[0]} for one weight. "
                f"Choose among {', '.join(self._defaults)}."
            )
        self._specific.setdefault(id, {}).update(
            {name: parse_value(name, pair) for name, pair in values.items()}
        )

    def value(self, name: str, weight: str) -> float:
        """Return a value for a weight."""
        return self.values_of(name).get(weight).val()

    def values_of(self, name: str) -> OptimizerValueMap:
        """Return a value of all weights."""
        specific = {w: v[name] for w, v in self._specific.items() if name in v}
        return OptimizerValueMap(self._defaults[name], specific)

    def getLossScalingVal(self) -> float:
        """Return by what the loss is multiplied, and gradients divided."""
        return self._loss_scaling.val()

    def check_replacement(self, new: "Optimizer") -> None:
        """Raise popart_exception if another one changes what never changes."""
        if type(new) is not type(self):
            raise popart_exception(
                f"The session was created with an optimizer of the class "
                f"{type(self).__name__}, and cannot go on with one of "
                f"{type(new).__name__}. Give one of the same class."
            )
        check_constant("lossScaling", self._loss_scaling, new._loss_scaling)
        weights = sorted(self._specific.keys() | new._specific.keys())
        for name in self._defaults:
            old, now = self.values_of(name), new.values_of(name)
            check_constant(name, old.getDefault(), now.getDefault())
            for weight in weights:
                label = f"{name} of the weight {weight}"
                check_constant(label, old.get(weight), now.get(weight))
        if new.clip_norm_settings != self.clip_norm_settings:
            raise popart_exception(
                "The optimizer's clip_norm_settings cannot change from "
                f"{list(self.clip_norm_settings)} to {list(new.clip_norm_settings)}. "
                "Give an optimizer with the same, or create a new session."
            )
        fixed, other = self._fixed_arguments(), new._fixed_arguments()
        for name, argument in fixed.items():
            if other.get(name, argument) != argument:
                raise popart_exception(
                    f"The optimizer's {name} cannot change from {argument} to "
                    f"{other[name]}: its tensors would not fit. Give an optimizer with "
                    f"{argument}, or create a new session."
                )

    def _fixed_arguments(self) -> dict[str, str]:
        """Return the arguments, by name, that a replacement must have, too."""
        return {}

    def update(
        self, name: str, weight: torch.Tensor, gradient: torch.Tensor, state: State
    ) -> torch.Tensor:
        """Return a weight after one update.

        Args:
            name: The name of the weight.
            weight: Its value.
            gradient: Its gradient, without loss scaling.
            state: The optimizer's tensors, by their names, which it changes.
        """
        raise NotImplementedError


def _accessor(name: str) -> Callable[[Optimizer], OptimizerValueMap]:
    def values(self: Optimizer) -> OptimizerValueMap:
        return self.values_of(name)

    values.__name__, values.__doc__ = f"{name}s", f"Return {name} of all weights."
    return values


def _with_default(name: str) -> str:
    return f"default{name[0].upper()}{name[1:]}"


def state_tensor(state: State, name: str, like: torch.Tensor) -> torch.Tensor:
    """Return one of the optimizer's tensors, which are zero at first."""
    if name not in state:
        state[name] = torch.zeros_like(like)
    return state[name]
