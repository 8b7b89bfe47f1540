"""Trains models on 8 and on 6 replicas, in one or two instances.

Usage: poptorch_program.py FOLDER. Calls neither popdist.init() nor hvd.init(). Each
instance writes its weights to FOLDER/INSTANCES-INSTANCE.pt.
"""

import sys
from pathlib import Path

import torch
from poptorch_models import FEATURES, batch, options, seeded
from torch import nn

import popdist
import popdist.poptorch
import poptorch

ACCUMULATION, ITERATIONS, ROWS, CALLS = 2, 2, 3, 2
SEED = 11


def share(
    replicas: int, mine: range, accumulation: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the samples of some of all replicas."""
    x, target = batch(ITERATIONS * accumulation * replicas * ROWS)
    parts = (ITERATIONS * accumulation, replicas, ROWS)
    rows = slice(mine.start, mine.stop)
    return (
        x.view(*parts, FEATURES)[:, rows].reshape(-1, FEATURES),
        target.view(parts)[:, rows].reshape(-1),
    )


def trained(
    settings: poptorch.Options,
    replicas: int,
    mine: range,
    accumulation: int,
    casts: bool = False,
    dtype: torch.dtype = torch.float32,
) -> dict[str, torch.Tensor]:
    # Each instance begins with other weights.
    model = seeded(nn.BatchNorm1d(8), nn.Dropout(0.3), seed=popdist.getInstanceIndex())
    model.to(dtype).autocast(casts)
    settings.Training.gradientAccumulation(accumulation)
    settings.deviceIterations(ITERATIONS)
    settings.randomSeed(SEED)
    settings.showCompilationProgressBar(False)
    # Of float16, gradients overflow.
    scaling = 2.0**17 if dtype is torch.float16 else 1.0
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.01, loss_scaling=scaling)
    executor = poptorch.trainingModel(model, settings, optimizer)
    for _ in range(CALLS):
        x, target = share(replicas, mine, accumulation)
        executor(x.to(dtype), target)
    return {name: value.clone() for name, value in executor.state_dict().items()}


def of_instance(instances: int) -> poptorch.Options:
    if instances > 1:
        settings: poptorch.Options = popdist.poptorch.Options()
        return settings
    return options(replicas=8)


def results(instances: int, instance: int) -> dict[str, dict[str, torch.Tensor]]:
    found = {}
    local = 8 // instances
    mine = range(instance * local, (instance + 1) * local)
    settings = of_instance(instances)
    found["8 replicas, with casts"] = trained(settings, 8, mine, 1, casts=True)
    settings = of_instance(instances)
    found["8 replicas, in half"] = trained(settings, 8, mine, 2, dtype=torch.float16)
    for accumulation in (1, ACCUMULATION):
        local = 8 // instances
        mine = range(instance * local, (instance + 1) * local)
        settings = of_instance(instances)
        found[f"8 replicas, {accumulation}"] = trained(settings, 8, mine, accumulation)
        local = 6 // instances
        mine = range(instance * local, (instance + 1) * local)
        settings = options(replicas=local)
        found[f"6 replicas, {accumulation}"] = trained(settings, 6, mine, accumulation)
    return found


if __name__ == "__main__":
    count, index = popdist.getNumInstances(), popdist.getInstanceIndex()
    torch.save(results(count, index), Path(sys.argv[1], f"{count}-{index}.pt"))
