"""Programs of accelerate, transformers and Lightning, on popdist in place of gloo."""

from pathlib import Path

import accelerate.test_utils.scripts as scripts
import pytest
from conftest import Poprun

pytestmark = pytest.mark.timeout(500)  # importing one of them takes 10 s, twice

COMMON = """
import os, torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
x = torch.randn(64, 4)
data = TensorDataset(x, x.sum(1, keepdim=True))

def report(weight):
    world = torch.distributed.group.WORLD
    text = f"{world.name()} {world.size()} {weight.flatten().tolist()}"
    os.write(1, (text + "\\n").encode())  # in one piece
"""
ACCELERATE = """
from accelerate import Accelerator
accelerator = Accelerator()
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(
    model, optimizer, DataLoader(data, batch_size=8)
)
for a, b in loader:
    optimizer.zero_grad()
    accelerator.backward(torch.nn.functional.mse_loss(model(a), b))
    optimizer.step()
report(accelerator.unwrap_model(model).weight)
"""
TRAINER = """
from transformers import Trainer, TrainingArguments

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 1)

    def forward(self, x=None, labels=None):
        out = self.fc(x)
        return {"loss": torch.nn.functional.mse_loss(out, labels), "logits": out}

arguments = TrainingArguments(
    "out", per_device_train_batch_size=8, num_train_epochs=1, learning_rate=0.1,
    report_to=[], save_strategy="no", disable_tqdm=True,
)
model = Net()
rows = [{"x": a, "labels": b} for a, b in data]
Trainer(model=model, args=arguments, train_dataset=rows).train()
report(model.fc.weight)
"""
LIGHTNING = """
import lightning

class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        return torch.nn.functional.mse_loss(self.fc(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def on_train_end(self):
        report(self.fc.weight)

lightning.Trainer(
    accelerator="cpu", strategy="ddp", devices=2, max_epochs=1, logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
).fit(Net(), DataLoader(data, batch_size=8))
"""
ENVIRON = {
    "ACCELERATE_USE_CPU": "true",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}


@pytest.mark.mpi
@pytest.mark.parametrize(
    "program",
    [
        pytest.param(ACCELERATE, id="accelerate"),
        pytest.param(TRAINER, id="transformers"),
        pytest.param(LIGHTNING, id="lightning"),
    ],
)
def test_unchanged_programs_train_alike_with_popdist_and_with_gloo(
    poprun: Poprun, program: str
) -> None:
    script = poprun.script("train.py", COMMON + program)
    found = {}
    for backend in ("popdist", "gloo"):
        ran = poprun(
            *("-n", "2", "--offline-mode", "yes"),
            *("--torch-backend", backend, "python", script),
            environ=ENVIRON,
            timeout=240,
        )
        lines = [one for one in ran.stdout.splitlines() if one.startswith(backend)]
        # gloo's threads may abort a process that has done its work.
        assert ran.code == 0 or backend == "gloo", ran.stderr
        assert len(lines) == 2, ran.stdout + ran.stderr
        found[backend] = {line.removeprefix(f"{backend} 2 ") for line in lines}

    # Sums of two have the same bits in every order.
    assert len(found["popdist"]) == 1
    assert found["popdist"] == found["gloo"]


# Without a GPU not all of them ask for processes that work together.
OWN_TEST = """
import os, runpy, sys
from accelerate import PartialState
state = PartialState(cpu=True)
os.write(1, f"{state.num_processes} processes\\n".encode())
runpy.run_path(sys.argv[1], run_name="__main__")
"""


@pytest.mark.mpi
@pytest.mark.parametrize("name", ["test_script", "test_ops", "test_sync"])
def test_accelerates_own_tests_pass(poprun: Poprun, name: str) -> None:
    script = str(Path(next(iter(scripts.__path__)), f"{name}.py"))
    ran = poprun(
        *("-n", "2", "--offline-mode", "yes"),
        *("--torch-backend", "popdist"),
        *("python", poprun.script("own_test.py", OWN_TEST), script),
        environ=ENVIRON,
        timeout=400,
    )

    assert ran.code == 0, ran.stderr
    assert ran.stdout.splitlines().count("2 processes") == 2
