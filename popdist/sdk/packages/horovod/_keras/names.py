"""The names that horovod.keras and horovod.tensorflow.keras have alike."""

from ..common.calls.reduce_ops import Adasum, Average, Max, Min, Product, Sum
from ..common.ranks import *  # noqa: F403
from ..tensorflow.compression import Compression
from .functions import (
    DistributedOptimizer,
    PartialDistributedOptimizer,
    allgather,
    allreduce,
    broadcast,
    broadcast_global_variables,
    reducescatter,
)
