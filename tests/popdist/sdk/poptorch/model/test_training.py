import copy
from collections.abc import Iterator

import pytest
import torch
from poptorch_models import batch, options, seeded, train_plainly
from torch import nn

import poptorch


def micro_batches(
    x: torch.Tensor, target: torch.Tensor, iterations: int, rows: int
) -> Iterator[list[tuple[torch.Tensor, torch.Tensor]]]:
    for part in zip(x.chunk(iterations), target.chunk(iterations), strict=True):
        pairs = zip(part[0].split(rows), part[1].split(rows), strict=True)
        yield list(pairs)


def assert_close(model: nn.Module, expected: nn.Module) -> None:
    for mine, other in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("reduction", ["Mean", "Sum"])
@pytest.mark.parametrize(
    ("replicas", "accumulation", "iterations"),
    [(1, 1, 1), (2, 1, 1), (3, 2, 2), (5, 1, 3), (6, 3, 1), (8, 2, 2)],
)
def test_a_call_updates_the_weights_as_plain_torch_does(
    replicas: int, accumulation: int, iterations: int, reduction: str
) -> None:
    rows = 2
    model = seeded()
    plain = copy.deepcopy(model)
    settings = options(replicas, accumulation, iterations)
    settings.Training.accumulationAndReplicationReductionType(
        poptorch.ReductionType[reduction]
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    executor = poptorch.trainingModel(model, settings, optimizer)
    x, target = batch(replicas * accumulation * iterations * rows)

    for _ in range(3):
        executor(x, target)
    expected = torch.optim.SGD(plain.parameters(), lr=0.05, momentum=0.9)
    for _ in range(3):
        steps = micro_batches(x, target, iterations, rows)
        train_plainly(plain, expected, steps, mean=reduction == "Mean")

    assert_close(model, plain)


class Embedded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        loss = self.embedding(x).float().sum()
        return poptorch.identity_loss(loss, reduction="none")


def test_an_optimizer_that_is_set_after_half_updates_weights_of_float16() -> None:
    module = Embedded()
    nn.init.ones_(module.embedding.weight)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.25)
    model = poptorch.trainingModel(module, optimizer=optimizer)
    model(torch.tensor([[1]]))

    module.half()
    model.setOptimizer(torch.optim.SGD(module.parameters(), lr=0.5))
    model(torch.tensor([[1]]))

    weight = module.embedding.weight
    assert (weight.dtype, weight.tolist()) == (torch.float16, [[1], [0.25]])
