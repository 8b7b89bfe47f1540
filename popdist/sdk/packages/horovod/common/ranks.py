"""The functions of every framework's module that take no tensors."""

from .calls.submission import BASICS
from .exceptions import HorovodInternalError
from .process_sets import ProcessSet, global_process_set
from .util import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    gpu_available,
    mpi_built,
    mpi_enabled,
    nccl_built,
    rocm_built,
)

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
