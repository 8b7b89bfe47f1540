"""Automatic loss scaling, which refuses."""

from ..refusals import refused

__all__ = ["AutomaticLossScalingOptimizer"]

AutomaticLossScalingOptimizer = refused(
    "AutomaticLossScalingOptimizer",
    "it reads statistics of float16 gradients on the chip. Use "
    "tf.keras.mixed_precision.LossScaleOptimizer.",
)
