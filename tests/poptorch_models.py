"""Small models, and plain torch that trains them as poptorch is documented to."""

import copy
from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.nn import functional

import poptorch

# Threads of torch gain nothing here, and would wait for each other under load.
torch.set_num_threads(1)

FEATURES, CLASSES = 6, 3


class Classifier(nn.Module):
    """Returns scores and the loss."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(FEATURES, 8), *layers, nn.ReLU(), nn.Linear(8, CLASSES)
        )

    def forward(
        self, x: torch.Tensor, target: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        scores = self.layers(x)
        loss = functional.cross_entropy(scores, target)
        return scores, poptorch.identity_loss(loss, reduction="none")


def seeded(*layers: nn.Module, seed: int = 1) -> Classifier:
    torch.manual_seed(seed)
    return Classifier(*copy.deepcopy(layers))


def batch(rows: int, seed: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(rows, FEATURES, generator=generator),
        torch.randint(0, CLASSES, (rows,), generator=generator),
    )


def options(
    replicas: int = 1, accumulation: int = 1, iterations: int = 1
) -> poptorch.Options:
    made = poptorch.Options()
    made.showCompilationProgressBar(False)
    made.replicationFactor(replicas)
    made.Training.gradientAccumulation(accumulation)
    made.deviceIterations(iterations)
    return made


def train_plainly(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: Iterator[list[tuple[torch.Tensor, torch.Tensor]]],
    *,
    mean: bool = True,
    loss_of: Callable[..., torch.Tensor] = lambda model, *inputs: model(*inputs)[1],
) -> None:
    """Update the weights once for each list of micro-batches."""
    for micro_batches in steps:
        optimizer.zero_grad()
        for inputs in micro_batches:
            loss = loss_of(model, *inputs)
            (loss / len(micro_batches) if mean else loss).backward()
        optimizer.step()
