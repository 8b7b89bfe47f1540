"""The peers that run in the same processes as the engine: MPI, gloo and DeepSpeed.

They are imported by name and late. Importing mpi4py.MPI calls MPI_Init, so it is
imported only on request; torch need not be installed.
"""

import atexit
import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from popdist.bench.communicator import Communicator
from popdist.bench.inputs import Array
from popdist.bench.runners import Peer, Run, run_each, run_pairs
from popdist.bench.tasks import OPERATIONS, Task

_LIBRARIES = {
    "Open MPI": "openmpi",
    "MPICH": "mpich",
    "Intel(R) MPI": "intelmpi",
    "MVAPICH": "mvapich",
}

# torch has deprecated the second name of each.
_TORCH_NAMES = {
    "reduce_scatter": ("reduce_scatter_single", "reduce_scatter_tensor"),
    "all_gather": ("all_gather_single", "all_gather_into_tensor"),
}


class PeerMissingError(Exception):
    """A peer cannot take part, and its message says why."""


class Mpi:
    """The operations of the MPI that started the processes, through mpi4py."""

    operations: Sequence[str] = OPERATIONS

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
        """Return a function that carries this task out."""
        sources: Sequence[Any] = task.inputs
        if task.operation == "all_reduce":
            sources = [self._in_place] * len(sources)
        return run_pairs(self._calls[task.operation], sources, task.results)


class TorchGroup:
    """The operations of torch.distributed in one of its process groups."""

    operations: Sequence[str] = OPERATIONS

    def __init__(self, name: str, torch: ModuleType, group: Any = None) -> None:
        """Take a group; by default the default one."""
        self.name = name
        self.library = f"{name} of torch {torch.__version__}"
        self._torch = torch
        self._distributed = torch.distributed
        self._group = {} if group is None else {"group": group}

    def runner(self, task: Task) -> Run:
        """Return a function that carries this task out."""
        sources = tensors_of(self._torch, task.inputs)
        if task.operation == "all_reduce":
            return run_each(self._call("all_reduce"), sources)
        results = tensors_of(self._torch, task.results)
        return run_pairs(self._call(task.operation), results, sources)

    def _call(self, operation: str) -> Callable[..., object]:
        names = _TORCH_NAMES.get(operation, (operation,))
        present = (getattr(self._distributed, name, None) for name in names)
        call: Callable[..., object] = next(filter(None, present))
        return partial(call, **self._group) if self._group else call


class DeepSpeed:
    """DeepSpeed's all_reduce through shared memory."""

    name = "deepspeed"
    operations: Sequence[str] = ("all_reduce",)

    def __init__(self, torch: ModuleType, all_reduce: Callable[..., object]) -> None:
        self.library = f"DeepSpeed's all_reduce of torch {torch.__version__}"
        self._torch = torch
        self._all_reduce = all_reduce

    def runner(self, task: Task) -> Run:
        """Return a function that carries this task out."""
        return run_each(self._all_reduce, tensors_of(self._torch, task.inputs))


# Any, because torch is not there when types are checked.
def tensors_of(torch: ModuleType, rows: Sequence[Array]) -> list[Any]:
    """Return tensors that share the memory of arrays."""
    if rows[0].dtype.name != "bfloat16":
        return [torch.from_numpy(row) for row in rows]
    # torch does not know ml_dtypes, to which numpy's bfloat16 belongs.
    return [torch.from_numpy(row.view(np.int16)).view(torch.bfloat16) for row in rows]


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
    # The greatest and the least size of all members, so that all decide the same.
    sizes = comm.greatest(np.array([mpi.COMM_WORLD.size, -mpi.COMM_WORLD.size], "d"))
    if list(sizes) != [comm.size, -comm.size]:
        raise PeerMissingError(
            f"its world has {mpi.COMM_WORLD.size} ranks, where {comm.size} "
            "instances were started. Its library and the mpirun that started them do "
            "not belong together: set MPI4PY_LIBMPI to that mpirun's libmpi."
        )
    return Mpi(mpi)


def _connect_gloo(comm: Communicator) -> TorchGroup:
    torch = _import_torch(comm)
    # The engine is measured through torch, too.
    if torch.distributed.is_initialized():
        group = torch.distributed.new_group(backend="gloo")
        return TorchGroup("gloo", torch, group)
    _join(torch, "gloo")
    return TorchGroup("gloo", torch)


def _connect_deepspeed(comm: Communicator) -> DeepSpeed:
    torch = _imported("torch", comm, "Install it with 'pip install torch'.")
    way_out = "scripts/bench_torch.py measures it in an environment of its own."
    _imported("deepspeed.ops.op_builder.cpu", comm, way_out)
    return DeepSpeed(torch, load_deepspeed(comm.rank, comm.size))


def load_deepspeed(rank: int, size: int) -> Callable[..., object]:
    """Return DeepSpeed's all_reduce in place, on each instance of a job."""
    torch = importlib.import_module("torch")
    builders = importlib.import_module("deepspeed.ops.op_builder.cpu")
    builders.ShareMemCommBuilder().load(verbose=False).initialize(size, rank)
    all_reduce: Callable[..., object] = torch.ops.deepspeed.inference_all_reduce_
    # After a call all have opened the buffers; DeepSpeed leaves their names behind.
    all_reduce(torch.ones(1))
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    for name in {line.rpartition(" ")[2] for line in maps}:
        own = name.startswith("/dev/shm/deepspeed_allreduce_buffer_")
        if own and name.endswith(f"_{rank}"):
            Path(name).unlink()
    return all_reduce


def _import_torch(comm: Communicator) -> ModuleType:
    torch = _imported("torch", comm, "Install it with 'pip install torch'.")
    _imported("popdist.torch", comm, "Install it with 'pip install poprun[torch]'.")
    return torch


def _join(torch: ModuleType, backend: str) -> None:
    """Make torch's default group, of all instances."""
    torch.distributed.init_process_group(backend, init_method="popdist://")
    # Its threads must end before the interpreter does, or they end it.
    atexit.register(torch.distributed.destroy_process_group)


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
    "deepspeed": _connect_deepspeed,
}
NAMES = tuple(_CONNECT)


# Any, because torch is not there when types are checked.
def connect_popdist(comm: Communicator) -> tuple[TorchGroup, Any]:
    """Return torch's default process group, which is the engine's, and its Group.

    Raises:
        PeerMissingError: torch cannot be imported.
    """
    torch = _import_torch(comm)
    _join(torch, "popdist")
    group = torch.distributed.group.WORLD.engine_group
    return TorchGroup("popdist", torch), group
