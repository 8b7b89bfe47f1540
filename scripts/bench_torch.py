"""How fast PyTorch's programs run on popdist, next to gloo and to plain torch.

Starts itself below poprun with 2 and with 4 instances, where the candidates take turns
every few milliseconds in one run. All times are medians of instance 0.

- Data parallel training: the backend "popdist", without and with the hook reduce_now,
  next to "gloo". Communication is the difference to a step with a hook that
  exchanges nothing.
- Calls of torch.distributed (`python -m popdist.bench --torch`) next to gloo and, once
  `make bench-peers` has installed it, to DeepSpeed's all-reduce through shared memory.
- hvd.grouped_allreduce of 100 tensors next to gloo, which reduces them tensor by tensor
  in asynchronous calls, and as one call.
- A step of PopTorch's stand-in with 8 local replicas, next to a plain loop.

With --ddp it compares data parallel training alone, over two hosts of a test bed with
2 instances each, which needs the rights to make network namespaces.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from bench_peers import PEERS
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import popdist.torch

Call = Callable[[], object]
SCRIPTS = Path(__file__).resolve().parent
CALLS = """
    -m popdist.bench --torch --op all_reduce,all_gather --dtypes bfloat16,float32
    --sizes 4K,8K,32K,128K,512K,2M,16M --peers gloo,deepspeed
"""
# Layers' widths of networks of so many parameters, and how many samples a step has.
NETWORKS = {"25M": (2240, 16), "5M": (1000, 16), "1M": (450, 16), "83k": (128, 32)}
# The elements of the largest of 100 tensors; the others go down to 64 evenly, by ratio.
LARGEST = (1 << 10, 1 << 14, 1 << 18)


def in_turns(
    calls: dict[str, Call], seconds: float, before: Call = lambda: None, count: int = 1
) -> dict[str, float]:
    """Return how long each call takes, in seconds: all instances make all of them.

    Args:
        before: Made before each call, and not measured.
        count: How many times in a row a call is made. Where it is more than once, the
            first one is not measured: it finds the caches as another call left them.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    begun, go_on = perf_counter(), torch.tensor(1)
    while go_on:
        for name, call in calls.items():
            dist.barrier()
            for number in range(count):
                before()
                start = perf_counter()
                call()
                took = perf_counter() - start
                if number or count == 1:
                    times[name].append(took)
        # Instance 0 decides when all have had enough.
        go_on = torch.tensor(int(perf_counter() - begun < seconds))
        dist.broadcast(go_on, 0)
    # The first call includes the setup.
    return {name: median(took[1:] or took) for name, took in times.items()}


def show(*columns: object) -> None:
    """Print a line, on instance 0."""
    if dist.get_rank() == 0:
        print("  ".join(f"{column!s:>13}" for column in columns), flush=True)


def exchange_nothing(
    _: object, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Return a bucket of gradients as it is."""
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def bench_training(
    gloo: Any, names: Sequence[str] = ("25M", "83k"), seconds_each: float = 12
) -> None:
    """Compare steps of data parallel training."""
    show("network", "step of", "ms", "exchange ms", "x gloo's")
    for name in names:
        width, samples = NETWORKS[name]
        inputs = torch.randn(samples, width)

        def step(
            group: Any, hook: Any = None, width: int = width, x: torch.Tensor = inputs
        ) -> Call:
            layers = [nn.Linear(width, width) for _ in range(5)]
            model = DistributedDataParallel(nn.Sequential(*layers), process_group=group)
            optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
            if hook is not None:
                model.register_comm_hook(None, hook)

            def call() -> None:
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()

            return call

        world = dist.group.WORLD
        seconds = in_turns(
            {
                "nothing": step(world, exchange_nothing),
                "gloo": step(gloo),
                "popdist": step(world),
                "reduce_now": step(world, popdist.torch.reduce_now),
            },
            seconds_each,
        )
        without_exchange = seconds.pop("nothing")
        gloo_exchange = seconds["gloo"] - without_exchange
        for kind, took in seconds.items():
            exchange = took - without_exchange
            ratio = f"{gloo_exchange / exchange:.1f}" if exchange > 0 else "-"
            show(name, kind, f"{1e3 * took:.2f}", f"{1e3 * exchange:.2f}", ratio)


def bench_horovod(gloo: Any) -> None:
    """Compare sums of many tensors in place, by Horovod's stand-in and by gloo."""
    import popdist.sdk

    popdist.sdk.install()
    import horovod.torch as hvd

    def one_by_one(tensors: list[torch.Tensor]) -> None:
        call = partial(dist.all_reduce, group=gloo, async_op=True)
        for work in [call(tensor) for tensor in tensors]:
            work.wait()

    hvd.init()
    calls: dict[str, Callable[[list[torch.Tensor]], object]] = {
        "horovod": partial(hvd.grouped_allreduce_, op=hvd.Sum),
        "gloo": one_by_one,
        "gloo, as one": partial(dist.all_reduce_coalesced, group=gloo),
    }
    show("largest", *(f"{name} ms" for name in calls))
    for largest in LARGEST:
        ratio = (largest / 64) ** (1 / 99)
        tensors = [torch.ones(round(64 * ratio**i)) for i in range(100)]
        seconds = in_turns(
            {name: partial(call, tensors) for name, call in calls.items()},
            seconds=3,
            before=partial(torch._foreach_zero_, tensors),
        )
        show(largest, *(f"{1e3 * took:.2f}" for took in seconds.values()))


def bench_executor() -> None:
    """Compare a step of PopTorch's stand-in with a plain loop, in one process."""
    import popdist.sdk

    popdist.sdk.install()
    import poptorch

    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers = [nn.Linear(512, 512) for _ in range(4)]
            self.layers = nn.Sequential(*layers)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            loss: torch.Tensor = poptorch.identity_loss(
                self.layers(x).square(), reduction="mean"
            )
            return loss

    options = poptorch.Options()
    options.replicationFactor(8)
    options.showCompilationProgressBar(False)
    model, plain = WithLoss(), WithLoss()
    training = poptorch.trainingModel(
        model, options, optimizer=torch.optim.SGD(model.parameters(), lr=1e-6)
    )
    optimizer = torch.optim.SGD(plain.parameters(), lr=1e-6)
    inputs = torch.randn(8 * 32, 512)

    def loop() -> None:
        optimizer.zero_grad()
        for part in inputs.chunk(8):
            (plain(part) / 8).backward()
        optimizer.step()

    seconds = in_turns({"loop": loop, "poptorch": lambda: training(inputs)}, 8)
    ratio = seconds["poptorch"] / seconds["loop"]
    show("8 replicas", *(f"{k} {1e3 * v:.2f} ms" for k, v in seconds.items()))
    show("poptorch", f"{ratio:.3f} x loop")


def measure(benchmark: str) -> None:
    """Run a benchmark, as an instance."""
    torch.set_num_threads(1)
    dist.init_process_group("popdist")
    if benchmark == "executor":
        bench_executor()
    else:
        gloo = dist.new_group(backend="gloo")
        bench = {
            "training": bench_training,
            "horovod": bench_horovod,
            "ddp": partial(bench_training, names=["25M", "5M", "1M"], seconds_each=40),
        }
        bench[benchmark](gloo)
    dist.destroy_process_group()


def start_over_hosts() -> None:
    """Start instances on two hosts of a test bed, with each MPI in turn."""
    sys.path[:0] = [str(SCRIPTS.parent), str(SCRIPTS.parent / "tests")]
    from beds.bed import Bed
    from conftest import mpirun_of

    with Bed(hosts=2) as bed:
        for mpi in ("openmpi5", "hydra"):
            print(f"\n2 hosts with 2 instances each, {mpi}: ddp", flush=True)
            job = ["poprun", "--mpirun", mpirun_of(mpi), "--host", "h0,h1", "-n", "4"]
            program = [
                "--offline-mode=yes",
                "python",
                str(SCRIPTS / "bench_torch.py"),
                "ddp",
            ]
            if bed.front.start(*job, *program).wait():
                raise SystemExit(1)


def main() -> None:
    """Start the instances."""
    one_thread = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    deepspeed = next(peer for peer in PEERS if peer.name == "deepspeed")
    runs = [(n, benchmark) for n in (2, 4) for benchmark in ("calls", "training")]
    for count, benchmark in [*runs, (1, "executor"), (2, "horovod"), (4, "horovod")]:
        print(f"\n{count} instances: {benchmark}", flush=True)
        words = [sys.executable, __file__, benchmark]
        environ: Mapping[str, str] = os.environ
        if benchmark == "calls":
            words = [sys.executable, *CALLS.split()]
            if deepspeed.is_installed():
                words[0] = f"{deepspeed.folder}/bin/python"
                environ = deepspeed.variables(count)
        instances = [f"--num-instances={count}", f"--num-replicas={count}"]
        poprun = [sys.executable, "-m", "poprun", *instances]
        subprocess.run([*poprun, *words], env={**environ, **one_thread}, check=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ddp", action="store_true", help="over hosts of a test bed")
    parser.add_argument("benchmark", nargs="?", help="of an instance")
    given = parser.parse_args()
    if given.benchmark:
        measure(given.benchmark)
    else:
        start_over_hosts() if given.ddp else main()
