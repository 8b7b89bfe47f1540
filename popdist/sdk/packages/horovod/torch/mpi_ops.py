"""Horovod's calls, under the name of the module by which programs know them."""

from time import monotonic_ns
from typing import Any

from popdist.negotiation.agreement import JOIN
from popdist.negotiation.call_requests import Kind, Request
from popdist.negotiation.negotiator import Call

from ..common.exceptions import HorovodInternalError
from ..common.process_sets import ProcessSet, global_process_set
from ..common.util import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    mpi_built,
    mpi_enabled,
    nccl_built,
    rocm_built,
)
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
from .calls.submission import BASICS, Handle, submit
from .compression import Compression
from .execution.reduce_ops import Adasum, Average, Max, Min, Product, Sum

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]

# As programs reach it, too.
_basics = BASICS
add_process_set = BASICS.add_process_set
cross_rank = BASICS.cross_rank
cross_size = BASICS.cross_size
init = BASICS.init
is_homogeneous = BASICS.is_homogeneous
is_initialized = BASICS.is_initialized
local_rank = BASICS.local_rank
local_size = BASICS.local_size
mpi_threads_supported = BASICS.mpi_threads_supported
rank = BASICS.rank
remove_process_set = BASICS.remove_process_set
shutdown = BASICS.shutdown
size = BASICS.size
start_timeline = BASICS.start_timeline
stop_timeline = BASICS.stop_timeline


def poll(handle: Handle) -> bool:
    """Return whether a call is over, so that synchronize() returns at once."""
    return handle.poll()


def synchronize(handle: Handle) -> Any:
    """Block until a call is over, and return its result.

    Raises:
        HorovodInternalError: The ranks' tensors or arguments differ, or a rank has
            ended.
    """
    return handle.wait()


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Return when all ranks of the process set have called it."""
    submit(process_set, Call(Request(Kind.BARRIER, None)), True).wait()


def join(device: int = -1) -> int:
    """Wait until all ranks have called this, and return the rank that did so last.

    Meanwhile this rank takes part in the allreduces and barriers of the others. It
    contributes zeros to a Sum and an Average, which still divides by all ranks, and
    what changes nothing to the rest. Other calls fail on the ranks that make them.

    Args:
        device: A GPU in Horovod; not used here.
    """
    # All ranks of a host have one clock.
    request = Request(Kind.JOIN, JOIN, counts=(monotonic_ns(),))
    handle = submit(global_process_set, Call(request), True)
    last: int = handle.wait()
    return last
