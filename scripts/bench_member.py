"""What each process of scripts/bench_peers.py runs: one candidate, measured alone.

It is started by poprun, with the Python of the peer's own environment, and needs of
this project only what measures. The first member prints a JSON object of microseconds
by size.
"""

import argparse
import atexit
import json
from typing import Any

import numpy as np

from popdist.bench import inputs
from popdist.bench.cells import check
from popdist.bench.communicator import Communicator, Floats, GroupCommunicator
from popdist.bench.peers import Mpi, load_deepspeed
from popdist.bench.rounds import READ_FROM_BYTES, Lane, measure
from popdist.bench.runners import Candidate, Engine, Run
from popdist.bench.sizes import parse
from popdist.bench.tasks import Task, make_task
from popdist.groups.instance_group import instance_group


class MpiCommunicator:
    """A communicator of the ranks of an MPI."""

    def __init__(self, mpi: Any) -> None:
        world = mpi.COMM_WORLD
        self.rank, self.size, self.barrier = world.rank, world.size, world.Barrier
        self._world, self._max, self._in_place = world, mpi.MAX, mpi.IN_PLACE

    def greatest(self, values: Floats) -> Floats:
        """Return, element by element, the greatest value of all members."""
        result = values.copy()
        self._world.Allreduce(self._in_place, result, self._max)
        return result


class DeepSpeed:
    """DeepSpeed's all-reduce through shared memory, and a communicator over gloo."""

    name = "deepspeed"

    def __init__(self) -> None:
        import torch
        import torch.distributed as distributed

        distributed.init_process_group("gloo")
        # Its threads must end before the interpreter does, or they end it.
        atexit.register(distributed.destroy_process_group)
        self.rank, self.size = distributed.get_rank(), distributed.get_world_size()
        self._torch, self._distributed = torch, distributed
        self._all_reduce = load_deepspeed(self.rank, self.size)
        self._one = torch.ones(1)

    def barrier(self) -> None:
        """Return when every member has come."""
        # gloo's own lets the first members go long before the last ones.
        self._distributed.barrier()
        self._all_reduce(self._one)

    def greatest(self, values: Floats) -> Floats:
        """Return, element by element, the greatest value of all members."""
        result = values.copy()
        maximum = self._distributed.ReduceOp.MAX
        self._distributed.all_reduce(self._torch.from_numpy(result), maximum)
        return result

    def runner(self, task: Task) -> Run:
        """Return what carries out a task of all_reduce."""
        tensors = [self._torch.from_numpy(row) for row in task.inputs]
        all_reduce = self._all_reduce

        def run(count: int) -> None:
            for x in tensors[:count]:
                all_reduce(x)

        return run


def candidate(kind: str) -> tuple[Communicator, Candidate]:
    """Return what is measured, and by what its members keep in step."""
    if kind == "deepspeed":
        deepspeed = DeepSpeed()
        return deepspeed, deepspeed
    if kind == "mpi":
        from mpi4py import MPI

        return MpiCommunicator(MPI), Mpi(MPI)
    group = instance_group()
    return GroupCommunicator(group), Engine(group)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("engine", "mpi", "deepspeed"))
    parser.add_argument("--sizes", type=parse, required=True)
    parser.add_argument("--dtype", choices=inputs.DTYPES, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    options = parser.parse_args()
    comm, measured = candidate(options.kind)
    microseconds = {}
    for nbytes in options.sizes:
        task = make_task("all_reduce", nbytes, options.dtype, comm.rank, comm.size)
        lane = Lane(
            name=measured.name,
            task=task,
            run=measured.runner(task),
            reads=nbytes >= READ_FROM_BYTES,
        )
        if problem := check(comm, lane):
            raise SystemExit(f"{measured.name} at {nbytes} bytes: {problem}")
        samples = measure(comm, [lane], options.seconds, lambda: 0.0)
        microseconds[nbytes] = float(np.median(samples.seconds)) * 1e6
    if comm.rank == 0:
        print(json.dumps(microseconds), flush=True)


if __name__ == "__main__":
    main()
