"""Horovod's collectives between instances, as Graphcore's TensorFlow has them."""

from typing import Any

from horovod.common.calls.reduce_ops import Adasum, Average, Sum
from horovod.common.ranks import *  # noqa: F403
from horovod.tensorflow import allgather, broadcast
from horovod.tensorflow import allreduce as _allreduce

from ..refusals import add_modules
from . import basics, gen_horovod_ops

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
