"""Measure hvd.grouped_allreduce of 100 tensors against gloo, by turns in one run.

poprun --num-instances 2 --num-replicas 2 python scripts/bench_horovod.py [SECONDS]

gloo reduces the same tensors in the same processes, once tensor by tensor as
asynchronous calls, once as one call (all_reduce_coalesced). Both write over the
tensors. A round takes as long as its slowest rank; a line shows the medians.
"""

import sys
from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch
import torch.distributed as dist

import popdist.sdk

popdist.sdk.install()

import horovod.torch as hvd  # noqa: E402

# The elements of the largest tensor; the others go down to 64 of them evenly, by ratio.
LARGEST = (1 << 10, 1 << 14, 1 << 18)
COUNT = 100


def tensors_up_to(largest: int) -> list[torch.Tensor]:
    """Return 100 tensors of 64 to so many elements."""
    ratio = (largest / 64) ** (1 / (COUNT - 1))
    return [torch.ones(round(64 * ratio**i)) for i in range(COUNT)]


def calls(tensors: list[torch.Tensor]) -> dict[str, Callable[[], object]]:
    """Return the calls to compare: each sums up the tensors in place."""

    def one_by_one() -> None:
        for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
            work.wait()

    return {
        "horovod": lambda: hvd.grouped_allreduce_(tensors, op=hvd.Sum),
        "gloo": one_by_one,
        "gloo, coalesced": lambda: dist.all_reduce_coalesced(tensors),
    }


def measure(seconds: float, largest: int) -> dict[str, float]:
    """Return the median time of each call, in seconds."""
    tensors = tensors_up_to(largest)
    compared = calls(tensors)
    times: dict[str, list[float]] = {name: [] for name in compared}
    begun = perf_counter()
    go_on = True
    while go_on:
        for name, call in compared.items():
            for tensor in tensors:
                tensor.fill_(1.0)
            hvd.barrier()
            start = perf_counter()
            call()
            took = torch.tensor(perf_counter() - start, dtype=torch.float64)
            times[name].append(hvd.allreduce_(took, op=hvd.Max).item())
        # Rank 0 decides.
        more = torch.tensor(perf_counter() - begun < seconds)
        go_on = bool(hvd.broadcast_(more, 0))
    return {name: median(samples[1:] or samples) for name, samples in times.items()}


def main(seconds: float) -> None:
    """Print a line for each size of the largest tensor."""
    hvd.init()
    dist.init_process_group("gloo", rank=hvd.rank(), world_size=hvd.size())
    torch.set_num_threads(1)
    for largest in LARGEST:
        times = measure(seconds / len(LARGEST), largest)
        if hvd.rank() == 0:
            own_time = times["horovod"]
            peers = ", ".join(
                f"{name} {time * 1e3:.2f} ms ({time / own_time:.1f} times)"
                for name, time in times.items()
                if name != "horovod"
            )
            print(
                f"{COUNT} tensors of 64 to {largest} float32, {hvd.size()} ranks: "
                f"horovod {own_time * 1e3:.2f} ms, {peers}",
                flush=True,
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 9.0)
