"""HorovodBasics: ranks, and the start and end of Horovod, as methods."""

from horovod.common import ranks
from horovod.common.calls import reduce_ops


class HorovodBasics:
    """Has the functions of the module as methods; all objects have the same ranks."""

    Adasum = reduce_ops.Adasum
    Average = reduce_ops.Average
    Sum = reduce_ops.Sum

    ccl_built = staticmethod(ranks.ccl_built)
    ddl_built = staticmethod(ranks.ddl_built)
    gloo_built = staticmethod(ranks.gloo_built)
    gloo_enabled = staticmethod(ranks.gloo_enabled)
    init = staticmethod(ranks.init)
    is_homogeneous = staticmethod(ranks.is_homogeneous)
    local_rank = staticmethod(ranks.local_rank)
    local_size = staticmethod(ranks.local_size)
    mpi_built = staticmethod(ranks.mpi_built)
    mpi_enabled = staticmethod(ranks.mpi_enabled)
    mpi_threads_supported = staticmethod(ranks.mpi_threads_supported)
    nccl_built = staticmethod(ranks.nccl_built)
    rank = staticmethod(ranks.rank)
    shutdown = staticmethod(ranks.shutdown)
    size = staticmethod(ranks.size)

    def __init__(self, *library: object) -> None:
        """Take the place of a library, which is not needed here."""
