"""Optimizers that wrap those of tf.compat.v1.train."""

from ..gradient_accumulation import GradientAccumulationReductionMethod
from . import (
    automatic_loss_scaling_optimizer,
    cross_replica_optimizer,
    gradient_accumulation_optimizer,
    ipu_optimizer,
    map_gradient_optimizer,
    sharded_optimizer,
)
from .automatic_loss_scaling_optimizer import AutomaticLossScalingOptimizer
from .cross_replica_optimizer import CrossReplicaOptimizer
from .gradient_accumulation_optimizer import (
    CrossReplicaGradientAccumulationOptimizer,
    CrossReplicaGradientAccumulationOptimizerV2,
    GradientAccumulationOptimizer,
    GradientAccumulationOptimizerV2,
)
from .ipu_optimizer import IpuOptimizer
from .map_gradient_optimizer import MapGradientOptimizer
from .sharded_optimizer import ShardedOptimizer
