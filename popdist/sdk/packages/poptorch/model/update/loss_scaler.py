"""Automatic loss scaling: the loss of float16 models follows the size of gradients."""

from collections.abc import Mapping, Sequence

import torch

from popdist.torch.replicated.trainer import Row

# float16 holds it, so that the loss of a model in float16 can be multiplied by it.
_LARGEST_SCALE = 2.0**15


class LossScaler:
    """Chooses the factor of the loss beside the optimizer's loss_scaling.

    It follows from the reduced gradients, and so is the same on all instances.
    """

    def __init__(self, settings: Mapping[str, float]) -> None:
        """Make a scaler with PopART's automaticLossScalingSettings."""
        self._settings = settings
        self._updates = 0

    def next_factor(
        self,
        parameters: Sequence[torch.Tensor],
        gradients: Row,
        micro_batches: int,
        scale: float,
    ) -> float:
        """Return by what the scale of the loss is multiplied for the next update.

        Args:
            gradients: Their sums over all micro-batches, in the scale of the loss.
            scale: By what the loss was multiplied.
        """
        self._updates += 1
        if self._updates % self._settings["updatePeriod"]:
            return 1.0
        largest = torch.finfo(torch.float16).max
        edge = self._settings["binEdgeLocation"] * largest * micro_batches
        elements = large = 0.0
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if gradient is not None and parameter.dtype is torch.float16:
                elements += gradient.numel()
                # NaN is large, too.
                large += gradient.numel() - (gradient.abs() <= edge).sum().item()
        if large > self._settings["thresholdUpperCountProportion"] * elements:
            return 0.5
        return 2.0 if elements and 2 * scale <= _LARGEST_SCALE else 1.0
