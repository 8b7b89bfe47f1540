"""Horovod's calls, under the name of the module by which programs know them.

It has no other names: horovod.torch has all of them too.
"""

from ..common.calls.reduce_ops import Adasum, Average, Max, Min, Product, Sum
from ..common.calls.submission import BASICS as _basics
from ..common.calls.waiting import barrier, join, poll, synchronize
from ..common.ranks import *  # noqa: F403
from .calls.collectives import (
    allgather,
    allgather_async,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    alltoall,
    alltoall_async,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather,
    grouped_allgather_async,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
    sparse_allreduce_async,
)
from .compression import Compression
