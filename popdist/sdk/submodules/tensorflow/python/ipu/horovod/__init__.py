"""Horovod's collectives between instances, as Graphcore's TensorFlow has them."""

from typing import Any

from horovod.common.calls.reduce_ops import Adasum, Average, Sum
from horovod.common.ranks import (
    ccl_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    shutdown,
    size,
)
from horovod.tensorflow import allgather as _allgather
from horovod.tensorflow import allreduce as _allreduce
from horovod.tensorflow import broadcast as _broadcast

from ..refusals import add_modules
from . import basics, gen_horovod_ops, popdist_strategy

add_modules(__name__)


def allreduce(
    tensor: Any,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Return the instances' tensors reduced to one: their average, unless op says else.

    Args:
        tensor: A tensor of the same shape and dtype on all instances, or
            tf.IndexedSlices.
        op: Average, Sum or Adasum.
        prescale_factor: A factor for each instance's tensor, before the reduction.
        postscale_factor: A factor for the result.
    """
    return _allreduce(
        tensor,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
    )


def allgather(tensor: Any, name: str | None = None) -> Any:
    """Return the instances' tensors, one after the other along the first dimension."""
    return _allgather(tensor, name)


def broadcast(tensor: Any, root_rank: int, name: str | None = None) -> Any:
    """Return the tensor of one instance, on all instances."""
    return _broadcast(tensor, root_rank, name)
