"""Horovod's collectives by the names of the operations that they are in a graph."""

from typing import Any

from horovod import tensorflow as hvd
from horovod.common.calls.reduce_ops import Sum


def horovod_allreduce(
    tensor: Any,
    reduce_op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
) -> Any:
    """Return the instances' tensors reduced to one, by Average, Sum or Adasum."""
    return hvd.allreduce(
        tensor,
        op=reduce_op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        name=name,
    )


horovod_allgather = hvd.allgather
horovod_broadcast = hvd.broadcast
