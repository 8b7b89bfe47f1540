"""Optimizers that wrap tf.compat.v1.train's."""

from ..gradient_accumulation import GradientAccumulationReductionMethod
from ..refusals import add_modules
from . import (
    cross_replica_optimizer,
    gradient_accumulation_optimizer,
    ipu_optimizer,
    map_gradient_optimizer,
    sharded_optimizer,
)
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

add_modules(__name__)
# By its name alone, because no file has the module.
AutomaticLossScalingOptimizer = vars()[
    "automatic_loss_scaling_optimizer"
].AutomaticLossScalingOptimizer
