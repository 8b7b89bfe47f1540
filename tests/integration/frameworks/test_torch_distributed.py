"""Programs of torch.distributed below poprun: ours, and those written for torchrun."""

from conftest import Poprun

PROGRAM = """
import os, sys
import torch, torch.distributed as dist
backend = sys.argv[1]
if backend == "popdist":
    import popdist.torch
    for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"):
        assert name in os.environ, name
dist.init_process_group(backend)
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
assert (dist.get_rank(), dist.get_world_size()) == (rank, size)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1, bias=False))
model(torch.full((1, 2), float(rank + 1))).sum().backward()
total = torch.tensor([1], dtype=torch.bfloat16)
dist.all_reduce(total)
if backend == "popdist":
    torch.ops.popdist.all_reduce_(total)
gradient = model.module.weight.grad.flatten().tolist()
dist.destroy_process_group()
print(backend, os.environ["LOCAL_RANK"], gradient, total.item(), flush=True)
if backend == "gloo":
    os._exit(0)  # threads of gloo that still run abort a process at its end
"""


def test_scripts_find_each_other_by_the_variables_that_poprun_sets(
    poprun: Poprun,
) -> None:
    script = poprun.script("train.py", PROGRAM)
    for backend, total in (("popdist", 4.0), ("gloo", 2.0)):
        ran = poprun(
            *("--num-instances", "2", "--num-replicas", "2", "python", script),
            backend,
            environ={"OMP_NUM_THREADS": "1"},
        )
        assert ran.code == 0, ran.stderr
        lines = [line.split(":", 1)[-1] for line in ran.stdout.splitlines()]
        assert sorted(lines) == [
            f"{backend} {rank} [1.5, 1.5] {total}" for rank in range(2)
        ]
