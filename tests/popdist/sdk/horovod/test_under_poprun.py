"""A program for Horovod as users have it, under poprun."""

import json
from pathlib import Path

import pytest
from conftest import Poprun

PROGRAM = """
import json
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import horovod
import horovod.torch as hvd
from horovod.runner.common.util.env import get_env_rank_and_size
from horovod.torch.mpi_ops import allreduce_async_, synchronize


def metric_average(value, name):
    return hvd.allreduce(torch.tensor(value), name=name).item()


place = get_env_rank_and_size()
hvd.init()
torch.manual_seed(hvd.rank())
inputs = torch.linspace(-2, 2, 64).reshape(64, 1)
data = TensorDataset(inputs, inputs.sin())
sampler = DistributedSampler(data, num_replicas=hvd.size(), rank=hvd.rank())
# Its worker is a fork of a process that has called init().
loader = DataLoader(data, batch_size=8, sampler=sampler, num_workers=1)
model = torch.nn.Sequential(
    torch.nn.Linear(1, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05 * hvd.size(), momentum=0.5)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
optimizer = hvd.DistributedOptimizer(
    optimizer, named_parameters=model.named_parameters()
)
losses = []
for epoch in range(3):
    sampler.set_epoch(epoch)
    total = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item()
    losses.append(metric_average(total / len(loader), "avg_loss"))
count = synchronize(allreduce_async_(torch.tensor([1]), op=hvd.Sum))
report = {
    "place": place == (hvd.rank(), hvd.size()),
    "count": count.item(),
    "losses": losses,
    "weights": hvd.allgather(model[0].weight.detach().flatten()[:2]).tolist(),
}
try:
    horovod.run(print, np=2)
except NotImplementedError as error:
    report["run"] = str(error)
with open(f"report.{hvd.rank()}", "w") as file:
    json.dump(report, file)
if hvd.rank() == 0:
    print("improved", losses[-1] < losses[0])
"""


@pytest.mark.mpi
def test_a_program_trains_as_it_does_with_horovod(
    poprun: Poprun, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)

    ran = poprun(
        *("--num-instances", "2", "--num-replicas", "2"),
        *("--mpirun", "local", "python", "train.py"),
        environ={"OMP_NUM_THREADS": "1"},
    )

    assert (ran.code, ran.stdout, ran.stderr) == (0, "improved True\n", "")
    first, second = (
        json.loads((tmp_path / f"report.{rank}").read_text()) for rank in range(2)
    )
    assert first == second
    assert first["place"]
    assert first["count"] == 2
    assert first["weights"] == first["weights"][:2] * 2
    assert first["run"] == (
        "horovod.run is not available: this Horovod starts no processes. Start the "
        "program with poprun --num-instances N python program.py instead."
    )
