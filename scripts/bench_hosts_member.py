"""One instance of scripts/bench_hosts.py: times all-reduces of one engine."""

import json
import os
import socket
import sys
from collections.abc import Callable
from statistics import median
from time import perf_counter, sleep

import numpy as np


def popdist_all_reduce() -> tuple[int, Callable[[np.ndarray], None]]:
    import popdist

    group = popdist.instance_group()
    return group.rank, lambda x: group.all_reduce(x, out=x)


def mpi_all_reduce() -> tuple[int, Callable[[np.ndarray], None]]:
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    return world.rank, lambda x: world.Allreduce(MPI.IN_PLACE, x)


def gloo_all_reduce() -> tuple[int, Callable[[np.ndarray], None]]:
    import atexit

    import torch
    from mpi4py import MPI
    from torch import distributed

    world = MPI.COMM_WORLD
    store = f"tcp://{sys.argv[3]}:29871"
    distributed.init_process_group(
        "gloo", init_method=store, rank=world.rank, world_size=world.size
    )
    atexit.register(distributed.destroy_process_group)
    return world.rank, lambda x: distributed.all_reduce(torch.from_numpy(x))


def pair_exchange() -> tuple[int, Callable[[np.ndarray], None]]:
    """One process of each host exchanges as many bytes with the other's: a floor."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    half = world.size // 2
    peer = (world.rank + half) % world.size
    received = np.empty(1 << 24, np.float32)

    def exchange(x: np.ndarray) -> None:
        if world.rank % half:
            return
        into = received[: len(x)]
        requests = [world.Irecv(into, peer), world.Isend(x, peer)]
        while not MPI.Request.Testall(requests):
            sleep(0)

    return world.rank, exchange


ENGINES = {
    "popdist": popdist_all_reduce,
    "mpi": mpi_all_reduce,
    "gloo": gloo_all_reduce,
    "exchange": pair_exchange,
}


def times(all_reduce: Callable[[np.ndarray], None], nbytes: int) -> float:
    """Return how many microseconds a call takes, the median of some."""
    x = np.ones(max(nbytes // 4, 1), np.float32)
    all_reduce(x)
    taken = []
    for _ in range(calls_of(nbytes)):
        x[:] = 1
        start = perf_counter()
        all_reduce(x)
        taken.append(perf_counter() - start)
    return median(taken) * 1e6


def calls_of(nbytes: int) -> int:
    """Return how many calls to time: as many on all members."""
    return max(7, min(300, (40 << 20) // max(nbytes, 1)))


def move_to_own_core() -> None:
    """Use one core alone, that of this host: h0 has the first one."""
    number = int(socket.gethostname().removeprefix("h"))
    os.sched_setaffinity(0, {number % (os.cpu_count() or 1)})


def main() -> None:
    if "own-core" in sys.argv:
        move_to_own_core()
    rank, all_reduce = ENGINES[sys.argv[1]]()
    sizes = [int(size) for size in sys.argv[2].split(",")]
    found = {nbytes: times(all_reduce, nbytes) for nbytes in sizes}
    if rank == 0:
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
