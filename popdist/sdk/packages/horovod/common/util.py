"""What Horovod is built with: popdist's collectives, and no other library.

gloo_built and gloo_enabled are True, because programs ask them whether tensors in the
CPU's memory can be reduced without MPI. There are also functions that programs import
from Horovod's module of this name.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")


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


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Return whether a framework's calls take tensors of a GPU: False."""
    return False


def num_rank_is_power_2(num_rank: int) -> bool:
    """Return whether Adasum can combine so many ranks: a power of two."""
    return num_rank.bit_count() == 1


def split_list(sequence: Sequence[T], n: int) -> list[Sequence[T]]:
    """Return a sequence in n parts, of which the first ones may be longer by one."""
    length, longer = divmod(len(sequence), n)
    ends = [length * part + min(part, longer) for part in range(n + 1)]
    return [sequence[begin:end] for begin, end in pairwise(ends)]


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Return whether a version is another one, major.minor.patch, or a later one.

    Raises:
        ValueError: The other one has not three parts.
    """
    # TensorFlow and Keras need it, and popdist does not.
    from packaging import version

    if target.count(".") != 2:
        raise ValueError(
            f"The version to compare with is {target!r}, but must be of the form "
            "major.minor.patch."
        )
    return version.parse(ver) >= version.parse(target)
