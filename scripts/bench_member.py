"""The processes of scripts/bench_peers.py and bench_hosts.py: one candidate, alone.

They need only popdist.bench of this project, and may run in the Python of a peer's own
environment. The first member prints a JSON object of microseconds by size.
"""

import argparse
import atexit
import json
import os
import socket
from time import sleep
from typing import Any

import numpy as np

from popdist.bench import inputs
from popdist.bench.cells import check
from popdist.bench.communicator import Communicator, Floats, GroupCommunicator
from popdist.bench.peers import DeepSpeed, Mpi, TorchGroup, load_deepspeed
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


class PairExchange:
    """A floor of two hosts: one process of each sends its array to the other's."""

    name = "exchange"

    def __init__(self, mpi: Any) -> None:
        self._mpi = mpi

    def runner(self, task: Task) -> Run:
        """Return a function that exchanges the task's inputs."""
        world, test = self._mpi.COMM_WORLD, self._mpi.Request.Testall
        half = world.size // 2
        peer = (world.rank + half) % world.size
        received = np.empty_like(task.source)

        def run(count: int) -> None:
            for x in task.inputs[:count] if world.rank % half == 0 else ():
                requests = [world.Irecv(received, peer), world.Isend(x, peer)]
                while not test(requests):
                    sleep(0)

        return run


class GlooCommunicator:
    """A communicator over torch's default group, which is one of gloo."""

    def __init__(self, **place: Any) -> None:
        """Join the group; by default the environment tells the place in it."""
        import torch
        import torch.distributed as distributed

        distributed.init_process_group("gloo", **place)
        # Its threads must end before the interpreter does, or they end it.
        atexit.register(distributed.destroy_process_group)
        self.rank, self.size = distributed.get_rank(), distributed.get_world_size()
        self.torch, self._distributed = torch, distributed

    def barrier(self) -> None:
        """Return when every member has called it."""
        self._distributed.barrier()

    def greatest(self, values: Floats) -> Floats:
        """Return, element by element, the greatest value of all members."""
        result = values.copy()
        maximum = self._distributed.ReduceOp.MAX
        self._distributed.all_reduce(self.torch.from_numpy(result), maximum)
        return result


class DeepSpeedCommunicator(GlooCommunicator):
    """A communicator over gloo that also waits by DeepSpeed's all-reduce."""

    def __init__(self) -> None:
        super().__init__()
        self.all_reduce = load_deepspeed(self.rank, self.size)
        self._one = self.torch.ones(1)

    def barrier(self) -> None:
        """Return when every member has called it."""
        # gloo's own lets the first members go long before the last ones.
        super().barrier()
        self.all_reduce(self._one)


def candidate(kind: str, store: str) -> tuple[Communicator, Candidate]:
    """Return the candidate, and what its members keep in step by."""
    if kind == "deepspeed":
        deepspeed = DeepSpeedCommunicator()
        return deepspeed, DeepSpeed(deepspeed.torch, deepspeed.all_reduce)
    if kind == "engine":
        group = instance_group()
        return GroupCommunicator(group), Engine(group)
    from mpi4py import MPI

    world = MpiCommunicator(MPI)
    if kind == "gloo":
        place = {"rank": world.rank, "world_size": world.size}
        gloo = GlooCommunicator(init_method=f"tcp://{store}", **place)
        return gloo, TorchGroup("gloo", gloo.torch)
    return world, Mpi(MPI) if kind == "mpi" else PairExchange(MPI)


def move_to_own_core() -> None:
    """Use one core alone, by the host's number: h0 has the first one."""
    number = int(socket.gethostname().removeprefix("h"))
    os.sched_setaffinity(0, {number % (os.cpu_count() or 1)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    kinds = ("engine", "mpi", "gloo", "deepspeed", "exchange")
    parser.add_argument("kind", choices=kinds)
    parser.add_argument("--sizes", type=parse, required=True)
    parser.add_argument("--dtype", choices=inputs.DTYPES, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--store", default="", help="HOST:PORT of gloo's first member")
    parser.add_argument(
        "--own-core", action="store_true", help="use the core of this host alone"
    )
    options = parser.parse_args()
    if options.own_core:
        move_to_own_core()
    comm, measured = candidate(options.kind, options.store)
    microseconds = {}
    for nbytes in options.sizes:
        task = make_task("all_reduce", nbytes, options.dtype, comm.rank, comm.size)
        lane = Lane(
            name=measured.name,
            task=task,
            run=measured.runner(task),
            reads=nbytes >= READ_FROM_BYTES,
        )
        # An exchange has no result.
        if options.kind != "exchange" and (problem := check(comm, lane)):
            raise SystemExit(f"{measured.name} at {nbytes} bytes: {problem}")
        samples = measure(comm, [lane], options.seconds, lambda: 0.0)
        microseconds[nbytes] = float(np.median(samples.seconds)) * 1e6
    if comm.rank == 0:
        print(json.dumps(microseconds), flush=True)


if __name__ == "__main__":
    main()
