"""Horovod's interface for TensorFlow: collectives, tapes and optimizers over them.

A rank is an instance of a job of poprun, or the only one in a program without it.
TensorFlow and both Kerases declare no types, so their objects are Any in this package.
"""

from typing import Any

from . import elastic, mpi_ops, util
from .collectives import (
    allreduce,
    grouped_allreduce,
    grouped_reducescatter,
    reducescatter,
)
from .compression import Compression
from .functions import (
    BroadcastGlobalVariablesHook,
    allgather_object,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from .gradient_tape import DistributedGradientTape, PartialDistributedGradientTape

# All that programs also import from there.
from .mpi_ops import *  # noqa: F403
from .optimizer import DistributedOptimizer
from .util import _executing_eagerly


def __getattr__(name: str) -> Any:
    """Return a class that needs Keras, because importing Keras takes a second."""
    if name == "SyncBatchNormalization":
        from .sync_batch_norm import SyncBatchNormalization

        return SyncBatchNormalization
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
