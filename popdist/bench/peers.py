"""The peers that run in the same processes as the engine: MPI and gloo.

They are imported by name and late. Importing mpi4py.MPI calls MPI_Init, so it is
done only where that peer is wanted; torch need not be there at all.
"""

import atexit
import importlib
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from popdist.bench.communicator import Communicator
from popdist.bench.runners import Run, run_pairs
from popdist.bench.tasks import Task

_LIBRARIES = {
    "Open MPI": "openmpi",
    "MPICH": "mpich",
    "Intel(R) MPI": "intelmpi",
    "MVAPICH": "mvapich",
}


class PeerMissingError(Exception):
    """A peer cannot take part, and its message says why."""


class Mpi:
    """The operations of the MPI that started the processes, through mpi4py."""

    def __init__(self, mpi: ModuleType) -> None:
        self.library = mpi.Get_library_version().strip("\0\n ").splitlines()[0]
        self.name = name_of_mpi(self.library)
        world = mpi.COMM_WORLD
        self._calls = {
            "all_reduce": world.Allreduce,
            "reduce_scatter": world.Reduce_scatter_block,
            "all_gather": world.Allgather,
        }
        self._in_place = mpi.IN_PLACE

    def runner(self, task: Task) -> Run:
        """Return what carries this task out."""
        sources: Sequence[Any] = task.inputs
        if task.operation == "all_reduce":
            sources = [self._in_place] * len(sources)
        return run_pairs(self._calls[task.operation], sources, task.results)


class Gloo:
    """The operations of torch.distributed on processors."""

    name = "gloo"

    def __init__(self, torch: ModuleType) -> None:
        self.library = f"gloo of torch {torch.__version__}"
        self._from_numpy = torch.from_numpy
        self._distributed = torch.distributed

    def runner(self, task: Task) -> Run:
        """Return what carries this task out."""
        sources = [self._from_numpy(row) for row in task.inputs]
        if task.operation == "all_reduce":
            return self._all_reduce(sources)
        names = {
            "reduce_scatter": "reduce_scatter_tensor",
            "all_gather": "all_gather_into_tensor",
        }
        results = [self._from_numpy(row) for row in task.results]
        call = getattr(self._distributed, names[task.operation])
        return run_pairs(call, results, sources)

    def _all_reduce(self, tensors: Sequence[Any]) -> Run:
        all_reduce = self._distributed.all_reduce

        def run(count: int) -> None:
            for x in tensors[:count]:
                all_reduce(x)

        return run


Peer = Mpi | Gloo


def find(names: Sequence[str], comm: Communicator) -> tuple[list[Peer], list[str]]:
    """Return the peers that can take part, and a sentence about each other.

    Every member must ask for the same names: peers connect in here.
    """
    present: list[Peer] = []
    sentences = []
    for name in names:
        try:
            present.append(_CONNECT[name](comm))
        except PeerMissingError as error:
            sentences.append(f"{name} is left out: {error}")
    return present, sentences


def name_of_mpi(library: str) -> str:
    """Return the short name of the MPI that calls itself so."""
    names = (name for words, name in _LIBRARIES.items() if words in library)
    return next(names, "mpi")


def _connect_mpi(comm: Communicator) -> Mpi:
    mpi = _imported("mpi4py.MPI", comm, "Install it with 'pip install mpi4py'.")
    # The greatest and the least of all members, so that they agree on what to do.
    sizes = comm.greatest(np.array([mpi.COMM_WORLD.size, -mpi.COMM_WORLD.size], "d"))
    if list(sizes) != [comm.size, -comm.size]:
        raise PeerMissingError(
            f"its world has {mpi.COMM_WORLD.size} ranks, where {comm.size} "
            "instances were started. Its library and the mpirun that started them do "
            "not belong together: set MPI4PY_LIBMPI to that mpirun's libmpi."
        )
    return Mpi(mpi)


def _connect_gloo(comm: Communicator) -> Gloo:
    torch = _imported("torch", comm, "Install it with 'pip install torch'.")
    distributed = _imported("torch.distributed", comm, "This torch lacks it.")
    # The first member's store takes a port that is free, and the others get its number.
    # The port that MASTER_PORT names may be in use by now.
    store = None
    port = 0
    if comm.rank == 0:
        store = _store(distributed, 0, comm)
        port = store.port
    port = int(comm.greatest(np.array([port], np.float64))[0])
    distributed.init_process_group(
        "gloo",
        store=store or _store(distributed, port, comm),
        rank=comm.rank,
        world_size=comm.size,
    )
    # Its threads must end before the interpreter does, or they end it.
    atexit.register(distributed.destroy_process_group)
    return Gloo(torch)


# Any, because torch is not there when types are checked.
def _store(distributed: ModuleType, port: int, comm: Communicator) -> Any:
    return distributed.TCPStore(
        "127.0.0.1", port, comm.size, comm.rank == 0, wait_for_workers=False
    )


def _imported(name: str, comm: Communicator, way_out: str) -> ModuleType:
    """Import a module if all members can, and otherwise say of it that they cannot."""
    why = ""
    try:
        module = importlib.import_module(name)
    # An MPI library that does not load is a RuntimeError, with several lines.
    except (ImportError, RuntimeError) as error:
        why = str(error).splitlines()[0]
    if comm.greatest(np.array([bool(why)], np.float64))[0]:
        raise PeerMissingError(
            f"{name} cannot be imported ({why or 'by another instance'}). {way_out}"
        )
    return module


_CONNECT: Mapping[str, Callable[[Communicator], Peer]] = {
    "mpi": _connect_mpi,
    "gloo": _connect_gloo,
}
NAMES = tuple(_CONNECT)
