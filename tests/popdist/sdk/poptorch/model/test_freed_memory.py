import resource

import pytest
import torch
from poptorch_models import options
from torch import nn

import poptorch
from poptorch.model.update.freed_memory import keep_freed_memory

WIDTH = 512


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = poptorch.identity_loss(self.layers(x), reduction="mean")
        return loss


def page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def test_training_steps_use_the_memory_of_the_step_before() -> None:
    if not keep_freed_memory():
        pytest.skip("the C library has no mallopt()")
    executor = poptorch.trainingModel(Wide(), options(replicas=8))
    x = torch.ones(8 * 4, WIDTH)
    for _ in range(3):
        executor(x)

    faults = []
    for _ in range(5):
        before = page_faults()
        executor(x)
        faults.append(page_faults() - before)

    # One row of gradients has 1026 pages, and a step makes four. The kernel may move
    # pages, and so add faults, in some of the steps.
    assert min(faults) < 256
