"""Programs of accelerate, transformers and Lightning, on popdist in place of gloo."""

from collections.abc import Mapping
from pathlib import Path

import accelerate.test_utils.scripts as scripts
import pytest
from conftest import Ran, running_poprun

pytestmark = pytest.mark.timeout(900)  # importing them takes 20 s in each instance

# Each program runs in a fork, because importing what they train with takes long.
COMMON = """
import os, runpy, sys, time
import accelerate.test_utils, lightning, torch
from torch.utils.data import DataLoader, TensorDataset
from transformers import Trainer, TrainingArguments
torch.manual_seed(0)
x = torch.randn(64, 4)
data = TensorDataset(x, x.sum(1, keepdim=True))

def report(weight):
    world = torch.distributed.group.WORLD
    text = f"{world.name()} {world.size()} {weight.flatten().tolist()}"
    os.write(1, f"{name}: {text}\\n".encode())  # in one piece

for name in sys.argv[1:]:
    child = os.fork()
    if not child:
        break
    status = os.waitpid(child, 0)[1]
    # gloo's threads may abort a process that has done its work.
    if status and os.environ["POPDIST_TORCH_BACKEND"] == "popdist":
        raise SystemExit(f"{name} ended with status {status}")
    # The others leave the port to the next program's first rank.
    open(f"{name}.{os.environ['RANK']}", "w").close()
    while not all(os.path.exists(f"{name}.{rank}") for rank in (0, 1)):
        time.sleep(0.01)
else:
    raise SystemExit
runpy.run_path(f"{name}.program", globals())
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
# Without a GPU not all of them ask for processes that work together.
OWN_TESTS = """
from accelerate import PartialState
from accelerate.state import AcceleratorState
for path in OWN_TEST_PATHS:
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
OWN_TESTS = OWN_TESTS.replace("OWN_TEST_PATHS", repr([*OWN_TEST_PATHS.values()]))
TRAININGS = {"accelerate": ACCELERATE, "transformers": TRAINER, "lightning": LIGHTNING}
ENVIRON = {
    "ACCELERATE_USE_CPU": "true",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}


def job(folder: Path, backend: str, programs: Mapping[str, str]) -> Ran:
    """Return one job that runs each of the programs in turn."""
    with running_poprun(folder) as poprun:
        for name, program in programs.items():
            poprun.script(f"{name}.program", program)
        return poprun(
            *("-n", "2", "--offline-mode", "yes"),
            *("--torch-backend", backend),
            *("python", poprun.script("main.py", COMMON), *programs),
            environ=ENVIRON,
            timeout=800,
        )


@pytest.fixture(scope="module")
def with_popdist(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    programs = {**TRAININGS, "own-tests": OWN_TESTS}
    return job(tmp_path_factory.mktemp("popdist"), "popdist", programs)


@pytest.fixture(scope="module")
def with_gloo(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return job(tmp_path_factory.mktemp("gloo"), "gloo", TRAININGS)


@pytest.mark.mpi
@pytest.mark.parametrize("name", TRAININGS)
def test_unchanged_programs_train_alike_with_popdist_and_with_gloo(
    with_popdist: Ran, with_gloo: Ran, name: str
) -> None:
    weights = []
    for backend, ran in (("popdist", with_popdist), ("gloo", with_gloo)):
        prefix = f"{name}: {backend} 2 "
        lines = [one for one in ran.stdout.splitlines() if one.startswith(prefix)]
        assert len(lines) == 2, ran.stdout + ran.stderr
        weights += [line.removeprefix(prefix) for line in lines]

    # Sums of two have the same bits in every order.
    assert len(set(weights)) == 1


@pytest.mark.mpi
@pytest.mark.parametrize("name", OWN_TEST_PATHS)
def test_accelerates_own_tests_pass(with_popdist: Ran, name: str) -> None:
    passed = f"{OWN_TEST_PATHS[name]} passed in 2 processes"
    assert with_popdist.stdout.splitlines().count(passed) == 2, with_popdist.stderr


@pytest.mark.mpi
def test_the_programs_end_well(with_popdist: Ran) -> None:
    assert with_popdist.code == 0, with_popdist.stderr
