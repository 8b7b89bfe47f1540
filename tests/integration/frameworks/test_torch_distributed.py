"""Programs of torch.distributed below poprun: ours, and those written for torchrun."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, Poprun

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


WITHOUT_PORT = """
import os, torch, torch.distributed as dist, popdist.torch
for _ in range(2):
    dist.init_process_group("popdist", init_method="popdist://")
    dist.all_reduce(total := torch.tensor([dist.get_rank() + 1]))
    dist.all_reduce(total, group=dist.new_group())
    dist.destroy_process_group()
os.write(1, f"{total.item()}\\n".encode())  # in one piece
try:
    dist.init_process_group("popdist", init_method="popdist://", world_size=5, rank=0)
except ValueError as error:
    assert "Leave rank and world_size out." in str(error), error
else:
    raise SystemExit(1)
"""


@pytest.mark.mpi
def test_a_bare_mpirun_is_enough_for_process_groups(
    every_mpirun: str, tmp_path: Path
) -> None:
    script = tmp_path / "program.py"
    script.write_text(WITHOUT_PORT)
    openmpi = ROOT / ".venv-mpich" not in Path(every_mpirun).parents
    root = ["--allow-run-as-root", "--oversubscribe"] if openmpi else []
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    for launcher, expected in (
        ([every_mpirun, *root, "-n", "2"], "6\n6\n"),
        ([], "1\n"),
    ):
        ran = subprocess.run(
            [*launcher, sys.executable, str(script)],
            env=environ,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert (ran.returncode, ran.stdout) == (0, expected), ran.stderr
