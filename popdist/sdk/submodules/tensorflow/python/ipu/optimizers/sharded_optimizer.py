"""An optimizer for models on several IPUs."""

from .ipu_optimizer import IpuOptimizer


class ShardedOptimizer(IpuOptimizer):
    """Wraps an optimizer: gradients are computed where their variables are."""
