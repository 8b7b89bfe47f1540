"""Programs of accelerate, transformers and Lightning, on popdist in place of gloo."""

from pathlib import Path

import accelerate.test_utils.scripts as scripts
import pytest
from conftest import Poprun, Ran, running_poprun

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
OWN_TESTS = """
import os, runpy, sys
from accelerate import PartialState
from accelerate.state import AcceleratorState
for path in sys.argv[1:]:
    state = PartialState(cpu=True)
    size = state.num_processes
    runpy.run_path(path, run_name="__main__")
    os.write(1, f"{path} passed in {size} processes\\n".encode())
    AcceleratorState._reset_state(reset_partial_state=True)
"""
OWN_TEST_PATHS = {
    name: str(Path(next(iter(scripts.__path__)), f"{name}.py"))
    # After test_script, the rounding errors of test_sync exceed its own tolerance.
    for name in ("test_sync", "test_script", "test_ops")
}


@pytest.fixture(scope="module")
def own_tests(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Return one job that runs each of accelerate's own tests in turn."""
    with running_poprun(tmp_path_factory.mktemp("accelerate")) as poprun:
        return poprun(
            *("-n", "2", "--offline-mode", "yes"),
            *("--torch-backend", "popdist"),
            *("python", poprun.script("own_tests.py", OWN_TESTS)),
            *OWN_TEST_PATHS.values(),
            environ=ENVIRON,
            timeout=400,
        )


@pytest.mark.mpi
@pytest.mark.parametrize("name", OWN_TEST_PATHS)
def test_accelerates_own_tests_pass(own_tests: Ran, name: str) -> None:
    passed = f"{OWN_TEST_PATHS[name]} passed in 2 processes"
    assert own_tests.stdout.splitlines().count(passed) == 2, own_tests.stderr


@pytest.mark.mpi
def test_the_job_of_accelerates_own_tests_ends_well(own_tests: Ran) -> None:
    assert own_tests.code == 0, own_tests.stderr
