"""Programs of torch on three hosts that go on, or start again, when one is lost."""

import subprocess
from collections.abc import Callable
from pathlib import Path

from beds.bed import Bed
from conftest import wait_for

FOLDER = "/root/state"


def folder_with(bed: Bed, program: str) -> Path:
    """Return a folder that the hosts share, with the file program.py."""
    folder = bed.front.path(FOLDER)
    folder.mkdir()
    (folder / "program.py").write_text(program)
    return folder


def start(bed: Bed, *options: str) -> "subprocess.Popen[str]":
    job: subprocess.Popen[str] = bed.front.start(
        *("poprun", "--mpirun", "local", "--host", "h0,h1,h2", "-n", "3", *options),
        *("python3", "program.py"),
        cwd=FOLDER,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    return job


def wait_for_files(job: "subprocess.Popen[str]", *paths: Path) -> None:
    def are_there() -> bool:
        assert job.poll() is None, "".join(job.communicate())
        return all(path.exists() for path in paths)

    wait_for(are_there, str(paths))


ELASTIC = """
import hashlib
from pathlib import Path
import torch
import torch.distributed as dist
import popdist.torch
from popdist import elastic
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(200, 200), torch.nn.Linear(200, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
state = elastic.State(model=model, optimizer=optimizer, step=0)

@elastic.run
def train(state):
    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group("popdist")
    parallel = DistributedDataParallel(model)
    stops = torch.zeros(1)
    while not stops:
        optimizer.zero_grad()
        parallel(torch.randn(8, 200)).square().mean().backward()
        optimizer.step()
        state.step += 1
        state.commit()
        Path(f"runs-{elastic.generation()}-{dist.get_rank()}").touch()
        stops[0] = Path("stop").exists()
        dist.all_reduce(stops)

train(state)
digest = hashlib.sha256(repr([p.tolist() for p in model.parameters()]).encode())
print(elastic.generation(), dist.get_world_size(), digest.hexdigest(), state.step)
dist.destroy_process_group()
"""


def test_ddp_goes_on_without_a_lost_host(make_bed: Callable[..., Bed]) -> None:
    bed = make_bed(hosts=3, shared_home=True)
    folder = folder_with(bed, ELASTIC)
    job = start(bed, "--min-instances", "2")
    wait_for_files(job, *(folder / f"runs-0-{rank}" for rank in range(3)))
    bed["h1"].kill()
    wait_for_files(job, *(folder / f"runs-1-{rank}" for rank in range(2)))
    (folder / "stop").touch()
    out, err = job.communicate(timeout=200)

    assert job.returncode == 0, err
    lines = out.splitlines()
    assert len(lines) == 2, out
    assert lines[0] == lines[1], out
    assert lines[0].startswith("1 2 ")


# Written for torchrun, with a snapshot after each epoch; it knows nothing of poprun.
WITH_SNAPSHOTS = """
import os
import time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

torch.set_num_threads(1)
dist.init_process_group("gloo")
model = torch.nn.Linear(20, 1)
first = 0
if os.path.exists("snapshot.pt"):
    snapshot = torch.load("snapshot.pt")
    model.load_state_dict(snapshot["model"])
    first = snapshot["epochs"]
parallel = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
data = TensorDataset(torch.randn(96, 20), torch.randn(96, 1))
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data))
for epoch in range(first, 40):
    for source, target in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(parallel(source), target).backward()
        optimizer.step()
    time.sleep(0.1)
    if dist.get_rank() == 0:
        content = {"model": model.state_dict(), "epochs": epoch + 1}
        torch.save(content, "snapshot.new")
        os.replace("snapshot.new", "snapshot.pt")
        open(f"epoch-{epoch}", "w").close()
dist.barrier()
restarts = os.environ["TORCHELASTIC_RESTART_COUNT"]
weights = model.weight.sum().item()
print(restarts, dist.get_world_size(), len(loader), weights, first)
dist.destroy_process_group()
"""


def test_a_program_for_torchrun_starts_again_on_fewer_hosts(
    make_bed: Callable[..., Bed],
) -> None:
    bed = make_bed(hosts=3, shared_home=True)
    folder = folder_with(bed, WITH_SNAPSHOTS)
    job = start(bed, "--nnodes", "1:3", "--max-restarts", "3", "--grace", "1")
    wait_for_files(job, folder / "epoch-3")
    bed["h1"].kill()
    out, err = job.communicate(timeout=200)

    assert job.returncode == 0, err
    lines = out.splitlines()
    assert len(lines) == 2, out
    assert lines[0] == lines[1], out
    # After one failure, 2 processes share 96 samples in batches of 8.
    assert lines[0].startswith("1 2 6 ")
    assert int(lines[0].split()[-1]) > 3, "it has begun anew"
    assert "the job has 2 instances of at most 3 now, on h0, h2." in err


# Each run of a worker leaves a mark; the sum tells who took part.
OF_TORCHRUN = """
import os
import time
from pathlib import Path
import torch
import torch.distributed as dist
import popdist.torch

dist.init_process_group("popdist")
rank, size = dist.get_rank(), dist.get_world_size()
stops = torch.zeros(1)
while not stops:
    total = torch.full((1000,), rank + 1.0)
    dist.all_reduce(total)
    assert set(total.tolist()) == {size * (size + 1) / 2}, total
    Path(f"runs-{size}-{rank}").touch()
    stops[0] = Path("stop").exists()
    dist.all_reduce(stops)
    time.sleep(0.05)
dist.destroy_process_group()
"""


def test_workers_of_torchrun_meet_again_after_a_change_of_hosts(
    make_bed: Callable[..., Bed],
) -> None:
    bed = make_bed(hosts=3, shared_home=True)
    folder = folder_with(bed, OF_TORCHRUN)

    def start_agent(name: str) -> "subprocess.Popen[str]":
        agent: subprocess.Popen[str] = bed[name].start(
            *("torchrun", "--nnodes", "1:3", "--nproc-per-node", "1"),
            *("--max-restarts", "3", "--rdzv-backend", "c10d", "--rdzv-id", "test"),
            # torchrun waits 30 seconds for more hosts, but for this.
            *("--rdzv-endpoint", "h0:29555", "--rdzv-conf", "last_call_timeout=2"),
            "program.py",
            # Otherwise torch 2.13's agents wait in vain for each other.
            env={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"},
            cwd=FOLDER,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return agent

    first = start_agent("h0")
    start_agent("h1")
    wait_for_files(first, *(folder / f"runs-2-{rank}" for rank in range(2)))
    third = start_agent("h2")
    wait_for_files(first, *(folder / f"runs-3-{rank}" for rank in range(3)))
    for rank in range(2):
        (folder / f"runs-2-{rank}").unlink()
    bed["h1"].kill()
    wait_for_files(first, *(folder / f"runs-2-{rank}" for rank in range(2)))
    (folder / "stop").touch()

    for agent in (first, third):
        out, _ = agent.communicate(timeout=200)
        assert agent.returncode == 0, out
