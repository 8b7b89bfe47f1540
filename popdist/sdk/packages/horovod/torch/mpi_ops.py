"""Horovod's calls, under the name of the module by which programs know them.

It has no other names: horovod.torch has all of them too.
"""

from ..common.exceptions import HorovodInternalError
from ..common.process_sets import ProcessSet, global_process_set
from ..common.util import *  # noqa: F403
from .calls.exchanges import (
    allgather,
    allgather_async,
    alltoall,
    alltoall_async,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather,
    grouped_allgather_async,
)
from .calls.reductions import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
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
from .calls.submission import BASICS as _basics
from .calls.waiting import barrier, join, poll, synchronize
from .compression import Compression
from .execution.reduce_ops import Adasum, Average, Max, Min, Product, Sum

add_process_set = _basics.add_process_set
cross_rank = _basics.cross_rank
cross_size = _basics.cross_size
init = _basics.init
is_homogeneous = _basics.is_homogeneous
is_initialized = _basics.is_initialized
local_rank = _basics.local_rank
local_size = _basics.local_size
mpi_threads_supported = _basics.mpi_threads_supported
rank = _basics.rank
remove_process_set = _basics.remove_process_set
shutdown = _basics.shutdown
size = _basics.size
start_timeline = _basics.start_timeline
stop_timeline = _basics.stop_timeline
