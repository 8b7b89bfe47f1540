"""Stochastic gradient descent."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch

from ..enums import DataType, SGDAccumulatorAndMomentum
from ..tensor_names import COMBINED, FIRST
from .clipping import ClipNormSettings
from .optimizer import Optimizer, State, state_tensor
from .values import Pair


class SGD(Optimizer):
    """Stochastic gradient descent, with momentum, dampening and weight decay."""

    VALUES: ClassVar[Mapping[str, float]] = {
        "learningRate": 0.1,
        "weightDecay": 0.0,
        "momentum": 0.0,
        "dampening": 0.0,
        "velocityScaling": 1.0,
        "nesterov": 0.0,
    }

    def __init__(
        self,
        pyd: Mapping[str, Pair] | float | None = None,
        clip_norm_settings: Sequence[ClipNormSettings] = (),
        accumulatorAndMomentum: SGDAccumulatorAndMomentum = (
            SGDAccumulatorAndMomentum.Combined
        ),
        accumType: DataType = DataType.UNDEFINED,
        accl1Type: DataType = DataType.UNDEFINED,
    ) -> None:
        """Make one.

        Args:
            pyd: Values by name, such as `{"defaultLearningRate": (0.1, False)}`, or
                the learning rate.
            clip_norm_settings: The largest norms of gradients.
            accumulatorAndMomentum: How momenta are named. Both ways compute the same.
            accumType: Without effect: gradients are added up in float32.
            accl1Type: Without effect: momenta are in float32.
        """
        if isinstance(pyd, int | float):
            pyd = {"defaultLearningRate": (pyd, False)}
        super().__init__(pyd or {}, clip_norm_settings)
        combined = accumulatorAndMomentum == SGDAccumulatorAndMomentum.Combined
        self._accumulator_and_momentum = accumulatorAndMomentum
        self._prefix = COMBINED if combined else FIRST

    def _fixed_arguments(self) -> dict[str, str]:
        values = self.values_of("momentum")
        momenta = [values.getDefault(), *map(values.get, self._specific)]
        if not any(momentum.val() or not momentum.isConst() for momentum in momenta):
            return {}
        return {"accumulatorAndMomentum": self._accumulator_and_momentum.name}

    def update(
        self, name: str, weight: torch.Tensor, gradient: torch.Tensor, state: State
    ) -> torch.Tensor:
        """Return a weight after one update."""
        rate, decay, momentum, dampening, scaling, nesterov = (
            self.value(value, name) for value in self.VALUES
        )
        # A multiplication by 1 would cost as much as the update itself.
        if decay:
            gradient = gradient + decay * weight
        if scaling != 1:
            gradient = scaling * gradient
        velocity = (1 - dampening) * gradient if dampening else gradient
        if momentum:
            key = self._prefix + name
            velocity = momentum * state_tensor(state, key, weight) + velocity
            state[key] = velocity
        if nesterov:
            velocity = gradient + momentum * velocity
        return torch.sub(weight, velocity, alpha=rate / scaling)


class ConstSGD(SGD):
    """Stochastic gradient descent with constant values."""

    def __init__(
        self,
        learning_rate: float,
        weight_decay: float = 0.0,
        loss_scaling: float = 1.0,
        clip_norm_settings: Sequence[ClipNormSettings] = (),
    ) -> None:
        super().__init__(
            {
                "defaultLearningRate": (learning_rate, True),
                "defaultWeightDecay": (weight_decay, True),
                "lossScaling": (loss_scaling, True),
            },
            clip_norm_settings,
        )
