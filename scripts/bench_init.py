"""How long it takes until the first all-reduce is done, next to MPI's own start.

    poprun --num-instances 2 --num-replicas 2 python scripts/bench_init.py

Each instance prints its time from `import popdist` to the end of the first all-reduce,
and then what importing mpi4py, which calls MPI_Init, takes in the same process.
"""

import time

import numpy as np


def main() -> None:
    began = time.perf_counter()
    import popdist

    popdist.init()
    popdist.instance_group().all_reduce(np.ones(1, np.float32))
    reduced = time.perf_counter()
    from mpi4py import MPI

    started = time.perf_counter()
    took, mpi = (reduced - began) * 1e3, (started - reduced) * 1e3
    print(
        f"instance {popdist.getInstanceIndex()}: popdist {took:.1f} ms, "
        f"MPI {mpi:.0f} ms ({MPI.Get_library_version()[:16]})",
        flush=True,
    )


if __name__ == "__main__":
    main()
