"""Start and end of Horovod, ranks, process sets and timelines."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from popdist.session import STATE

from ...common.process_sets import ProcessSet
from .world import WORLD


def init(
    comm: Any = None,
    process_sets: Sequence[ProcessSet | Iterable[int]]
    | Literal["dynamic"]
    | None = None,
) -> None:
    """Meet the other ranks. A second call does nothing.

    All instances of the job must call it; it blocks until they have. Without poprun
    and mpirun this process is the only rank.

    Args:
        comm: The instances that are ranks, as a list of their numbers; or a
            communicator of mpi4py that has all of them. None for all.
        process_sets: Process sets to register, the same on all ranks; or "dynamic" for
            a program that adds and removes them later.

    Raises:
        ValueError: comm or process_sets are not valid.
        HorovodInternalError: The ranks cannot reach each other.
    """
    if isinstance(process_sets, str) and process_sets.lower() != "dynamic":
        raise ValueError(
            f"process_sets is {process_sets!r}, but must be a list of process sets, or "
            "'dynamic'."
        )
    dynamic = isinstance(process_sets, str)
    sets = [] if process_sets is None or isinstance(process_sets, str) else process_sets
    WORLD.init(_ranks_of(comm), sets, dynamic)


def _ranks_of(comm: Any) -> Iterable[int] | None:
    """Return the instances that are ranks; None for all."""
    if comm is None:
        return None
    if hasattr(comm, "Get_size"):
        place = STATE.job.place
        if (comm.Get_rank(), comm.Get_size()) != (place.rank, place.size):
            raise ValueError(
                f"The communicator has {comm.Get_size()} ranks, of which this is "
                f"{comm.Get_rank()}, but the job has {place.size} instances, of which "
                f"this is {place.rank}. Give the list of the instances instead."
            )
        return None
    ranks = list(comm)
    return ranks or None


def shutdown() -> None:
    """End Horovod in this process. init() may follow, if all ranks call it.

    Calls that are under way fail with HorovodInternalError on all ranks.
    """
    WORLD.shut_down()


def is_initialized() -> bool:
    """Return whether init() has been called, and not shutdown() since."""
    return WORLD.initialized


def rank() -> int:
    """Return the number of this process among all ranks."""
    return WORLD.rank()


def size() -> int:
    """Return the number of ranks."""
    return WORLD.size()


def local_rank() -> int:
    """Return the number of this process among those of its host."""
    return WORLD.local_place()[0]


def local_size() -> int:
    """Return the number of ranks on this host."""
    return WORLD.local_place()[1]


def cross_rank() -> int:
    """Return the number of this host among those that have a rank of this number."""
    return WORLD.cross_place()[0]


def cross_size() -> int:
    """Return the number of hosts that have a rank of this local number."""
    return WORLD.cross_place()[1]


def is_homogeneous() -> bool:
    """Return whether all hosts have the same number of ranks."""
    return WORLD.is_homogeneous()


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Register a process set, and return it.

    All ranks must call it, in the same order; it blocks until they have.

    Raises:
        ValueError: There is a set of these ranks; hvd.init() was not called with
            process_sets="dynamic"; or there are no such ranks.
        HorovodInternalError: The ranks have given different sets.
    """
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    WORLD.add_dynamically(process_set)
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Forget a process set. All ranks must call it, in the same order.

    Returns whether it could be removed: the global process set cannot.
    """
    WORLD.size()
    return WORLD.remove(process_set)


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Write a timeline of calls to a file, from now on. Rank 0 writes it.

    Args:
        file_path: A file, which is replaced. chrome://tracing and Perfetto show it.
        mark_cycles: Mark the rounds in which ranks announce their calls.
    """
    WORLD.start_timeline(file_path, mark_cycles)


def stop_timeline() -> None:
    """End the timeline, and complete its file."""
    WORLD.stop_timeline()


def mpi_threads_supported() -> bool:
    """Return whether other uses of MPI may be mixed with Horovod's calls.

    They may, as no call here uses MPI.
    """
    WORLD.size()
    return True
