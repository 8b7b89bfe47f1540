"""Adam, and the optimizers that follow from it."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch

from ..enums import AdamMode, DataType, WeightDecayMode
from ..tensor_names import FIRST, SECOND, STEP
from .clipping import ClipNormSettings
from .optimizer import Optimizer, State, state_tensor
from .values import Pair


class Adam(Optimizer):
    """Adam, AdamW, AdaMax and Lamb, with and without correction of the bias."""

    VALUES: ClassVar[Mapping[str, float]] = {
        "learningRate": 0.1,
        "weightDecay": 0.0,
        "beta1": 0.9,
        "beta2": 0.999,
        "eps": 1e-6,
        "maxWeightNorm": 10.0,
    }

    def __init__(
        self,
        values: Mapping[str, Pair],
        mode: AdamMode = AdamMode.Adam,
        weight_decay_mode: WeightDecayMode = WeightDecayMode.Decay,
        accum_type: DataType = DataType.UNDEFINED,
        accl1_type: DataType = DataType.FLOAT,
        accl2_type: DataType = DataType.FLOAT,
        clip_norm_settings: Sequence[ClipNormSettings] = (),
        scaled_optimizer_state: bool = False,
    ) -> None:
        """Make one. Types and scaling of its tensors have no effect: all are float32.

        Args:
            values: Values by name, such as `{"defaultLearningRate": (0.1, False)}`.
            mode: The variant that updates the weights.
            weight_decay_mode: Whether weights decay by themselves.
            accum_type: Without effect.
            accl1_type: Without effect.
            accl2_type: Without effect.
            clip_norm_settings: The largest norms of gradients.
            scaled_optimizer_state: Without effect.
        """
        super().__init__(values, clip_norm_settings)
        self.mode, self.weight_decay_mode = mode, weight_decay_mode

    def _fixed_arguments(self) -> dict[str, str]:
        return {
            "mode": self.mode.name,
            "weight_decay_mode": self.weight_decay_mode.name,
        }

    def update(
        self, name: str, weight: torch.Tensor, gradient: torch.Tensor, state: State
    ) -> torch.Tensor:
        """Return a weight after one update."""
        rate, decay, beta1, beta2, epsilon, most = (
            self.value(value, name) for value in self.VALUES
        )
        if self.weight_decay_mode == WeightDecayMode.L2Regularization:
            gradient, decay = gradient + decay * weight, 0.0
        first = (
            beta1 * state_tensor(state, FIRST + name, weight) + (1 - beta1) * gradient
        )
        second = beta2 * state_tensor(state, SECOND + name, weight)
        greatest = self.mode == AdamMode.AdaMax
        if greatest:
            second = torch.maximum(second, gradient.abs())
        else:
            second = second + (1 - beta2) * gradient * gradient
        step = state_tensor(state, STEP + name, weight.new_zeros([])) + 1
        state.update({FIRST + name: first, SECOND + name: second, STEP + name: step})
        if self.mode not in (AdamMode.AdamNoBias, AdamMode.LambNoBias):
            first = first / (1 - beta1 ** step.item())
            second = second if greatest else second / (1 - beta2 ** step.item())
        change = first / ((second if greatest else second.sqrt()) + epsilon)
        change = change + decay * weight
        if self.mode in (AdamMode.Lamb, AdamMode.LambNoBias):
            rate *= _trust(weight, change, most)
        return weight - rate * change


def _trust(weight: torch.Tensor, change: torch.Tensor, most: float) -> float:
    """Return by what Lamb scales the change of a weight."""
    norm, change_norm = weight.norm().item(), change.norm().item()
    return min(norm, most) / change_norm if norm and change_norm else 1.0
