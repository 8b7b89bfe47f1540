"""Horovod's interface for PopART: weights and gradients of sessions on all ranks.

A rank is an instance of a job of poprun, or the only one in a program without it.
"""

from ..torch.mpi_ops import (
    init,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)
from .sessions import (
    DistributedOptimizer,
    DistributedTrainingSession,
    broadcast_weights,
)
