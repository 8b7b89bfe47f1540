"""An optimizer that applies the mean of the replicas' gradients."""

from typing import Any

import tensorflow as tf

from ..ops.cross_replica_ops import cross_replica_mean
from .ipu_optimizer import IpuOptimizer


class CrossReplicaOptimizer(IpuOptimizer):
    """Wraps an optimizer, and gives it the mean of all replicas' gradients."""

    def __init__(self, opt: Any, name: str = "CrossReplicaOptimizer") -> None:
        super().__init__(opt, name)

    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: str | None = None
    ) -> Any:
        """Return the operation that applies the means."""
        pairs = [
            (
                None
                if grad is None
                else cross_replica_mean(tf.convert_to_tensor(grad)),
                variable,
            )
            for grad, variable in grads_and_vars
        ]
        return super().apply_gradients(pairs, global_step, name)
