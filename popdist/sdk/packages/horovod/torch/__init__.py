"""Horovod's interface for PyTorch: collectives among ranks, and optimizers over them.

A rank is an instance of a job of poprun, or the only one in a program without it.
"""

from ..common.calls.objects import allgather_object, broadcast_object
from . import elastic, mpi_ops
from .functions import broadcast_optimizer_state, broadcast_parameters

# All that programs also import from there.
from .mpi_ops import *  # noqa: F403
from .optimizer import DistributedOptimizer
from .sync_batch_norm import SyncBatchNorm
