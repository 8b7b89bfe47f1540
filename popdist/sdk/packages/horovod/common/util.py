"""What Horovod is built with: popdist's collectives, and no other library.

gloo_built and gloo_enabled are True, because programs ask them whether tensors in the
CPU's memory can be reduced without MPI.
"""


def mpi_enabled() -> bool:
    """Return whether MPI makes the calls: False."""
    return False


def mpi_built() -> bool:
    """Return whether Horovod is built with MPI: False."""
    return False


def gloo_enabled() -> bool:
    """Return whether calls on CPU tensors need no MPI: True."""
    return True


def gloo_built() -> bool:
    """Return whether calls on CPU tensors are possible without MPI: True."""
    return True


def nccl_built() -> int:
    """Return the version of NCCL that Horovod is built with: 0, for none."""
    return 0


def ddl_built() -> bool:
    """Return whether Horovod is built with DDL: False."""
    return False


def ccl_built() -> bool:
    """Return whether Horovod is built with oneCCL: False."""
    return False


def cuda_built() -> bool:
    """Return whether Horovod is built with CUDA: False."""
    return False


def rocm_built() -> bool:
    """Return whether Horovod is built with ROCm: False."""
    return False
