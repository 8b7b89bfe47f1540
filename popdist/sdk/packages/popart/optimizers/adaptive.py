"""Optimizers that divide by the size of past gradients."""

from collections.abc import Mapping
from typing import ClassVar

import torch

from ..enums import AdaptiveMode, DataType, WeightDecayMode
from ..tensor_names import FIRST, SECOND, THIRD
from .optimizer import Optimizer, State, state_tensor
from .values import Pair


class Adaptive(Optimizer):
    """AdaGrad, RMSProp, centred RMSProp and AdaDelta."""

    VALUES: ClassVar[Mapping[str, float]] = {
        "learningRate": 0.01,
        "weightDecay": 0.0,
        "alpha": 0.99,
        "momentum": 0.0,
        "eps": 1e-6,
    }

    def __init__(
        self,
        values: Mapping[str, Pair],
        mode: AdaptiveMode = AdaptiveMode.RMSProp,
        weight_decay_mode: WeightDecayMode = WeightDecayMode.Decay,
        accum_type: DataType = DataType.UNDEFINED,
        accl1_type: DataType = DataType.FLOAT,
        accl2_type: DataType = DataType.FLOAT,
        accl3_type: DataType = DataType.UNDEFINED,
        rmsprop_tf_variant: bool = False,
    ) -> None:
        """Make one. Types of its tensors have no effect: all are float32.

        Args:
            values: Values by name, such as `{"defaultLearningRate": (0.1, False)}`.
            mode: The variant that updates the weights.
            weight_decay_mode: Whether weights decay by themselves.
            accum_type: Without effect.
            accl1_type: Without effect.
            accl2_type: Without effect.
            accl3_type: Without effect.
            rmsprop_tf_variant: Whether RMSProp follows TensorFlow.
        """
        super().__init__(values)
        self.mode, self.weight_decay_mode = mode, weight_decay_mode
        centred = (AdaptiveMode.RMSProp, AdaptiveMode.CenteredRMSProp)
        self._as_tensorflow = rmsprop_tf_variant and mode in centred

    def _fixed_arguments(self) -> dict[str, str]:
        return {
            "mode": self.mode.name,
            "weight_decay_mode": self.weight_decay_mode.name,
            "rmsprop_tf_variant": str(self._as_tensorflow),
        }

    def update(
        self, name: str, weight: torch.Tensor, gradient: torch.Tensor, state: State
    ) -> torch.Tensor:
        """Return a weight after one update."""
        rate, decay, _, momentum, _ = (self.value(value, name) for value in self.VALUES)
        if self.weight_decay_mode == WeightDecayMode.L2Regularization:
            gradient, decay = gradient + decay * weight, 0.0
        change = self._change(name, gradient, state)
        # TensorFlow's momentum has the learning rate in it.
        scaled = self._as_tensorflow and momentum
        if scaled:
            change, rate = rate * change, 1.0
        if momentum:
            change = momentum * state_tensor(state, THIRD + name, weight) + change
            state[THIRD + name] = change
        return weight - rate * (change + decay * weight)

    def _change(self, name: str, gradient: torch.Tensor, state: State) -> torch.Tensor:
        """Return the change of a weight for a learning rate of 1."""
        alpha, epsilon = self.value("alpha", name), self.value("eps", name)
        first = state_tensor(state, FIRST + name, gradient)
        if self.mode == AdaptiveMode.AdaGrad:
            first = first + gradient * gradient
        else:
            first = alpha * first + (1 - alpha) * gradient * gradient
        state[FIRST + name] = first
        if self.mode == AdaptiveMode.AdaDelta:
            second = state_tensor(state, SECOND + name, gradient)
            change = gradient * (second + epsilon).sqrt() / (first + epsilon).sqrt()
            state[SECOND + name] = alpha * second + (1 - alpha) * change * change
            return change
        variance = first
        if self.mode == AdaptiveMode.CenteredRMSProp:
            second = alpha * state_tensor(state, SECOND + name, gradient)
            second = second + (1 - alpha) * gradient
            state[SECOND + name] = second
            variance = first - second * second
        if self._as_tensorflow:
            return gradient / (variance + epsilon).sqrt()
        return gradient / (variance.sqrt() + epsilon)
