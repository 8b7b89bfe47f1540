"""The tutorial in examples/ddp prints what its page says."""

import re

import pytest
from conftest import ROOT, Poprun

FOLDER = ROOT / "examples/ddp"
LINE = re.compile(r"\[Epoch 01\] loss: (\d\.\d{3}), acc: (\d+\.\d)")
STEP_1 = [
    *("--batch-size", "64", "--gradient-accumulation", "8"),
    *("--device-iterations", "4", "--eight-bit-io", "--async-dataloader"),
]


# It draws 50 000 images, in 10 s on two idle cores.
@pytest.mark.mpi
@pytest.mark.timeout(600)
def test_step_1_prints_the_loss_of_its_page(poprun: Poprun) -> None:
    ran = poprun(
        *("--num-instances", "1", "--num-replicas", "1", "--ipus-per-replica", "2"),
        *("--offline-mode", "yes", "python", str(FOLDER / "main.py")),
        *(*STEP_1, "--epochs", "1"),
        timeout=550,
    )

    page = LINE.search((FOLDER / "README.md").read_text())
    printed = LINE.search(ran.stdout)
    assert page is not None
    assert printed is not None, ran.stderr
    # Processors round differently.
    assert float(printed[1]) == pytest.approx(float(page[1]), abs=0.1)
    assert float(printed[2]) == pytest.approx(float(page[2]), abs=6)
    assert ran.stderr.count("torch.int64 is not supported natively on IPU") == 1
