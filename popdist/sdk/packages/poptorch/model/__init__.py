"""Modules that run and train as options say, on the replicas of a job."""

import torch
from torch import nn

from ..errors import Error
from ..options import Options
from .executor import PoplarExecutor

__all__ = ["PoplarExecutor", "inferenceModel", "trainingModel"]


def trainingModel(
    model: nn.Module | PoplarExecutor,
    options: Options | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> PoplarExecutor:
    """Return an executor that trains a module.

    A call runs forward and backward on all micro-batches, and updates the weights once
    in each device iteration, from the gradients of all replicas of all instances.

    Args:
        options: How it trains; they are frozen from then on.
        optimizer: By default SGD with a learning rate of 0.01.

    Raises:
        Error: An argument is of another type.
        RuntimeError: Another executor trains this module.
    """
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        raise Error(
            "Invalid type: 'optimizer' is of type "
            f"{type(optimizer)} (Expected torch.optim.Optimizer)"
        )
    return PoplarExecutor(_module(model), _options(options), True, optimizer)


def inferenceModel(
    model: nn.Module | PoplarExecutor, options: Options | None = None
) -> PoplarExecutor:
    """Return an executor that runs a module forward only.

    It has the weights of the module at each call, also while another executor trains
    that.

    Raises:
        Error: An argument is of another type, or gradients are to be accumulated.
    """
    return PoplarExecutor(_module(model), _options(options), False)


def _module(model: nn.Module | PoplarExecutor) -> nn.Module:
    module = model.model if isinstance(model, PoplarExecutor) else model
    if not isinstance(module, nn.Module):
        raise Error(
            f"Invalid type: 'model' is of type {type(model)} (Expected torch.nn.Module)"
        )
    return module


def _options(options: Options | None) -> Options:
    if options is None:
        return Options()
    if not isinstance(options, Options):
        raise Error(
            f"Invalid type: 'options' is of type {type(options)} "
            "(Expected poptorch.Options)"
        )
    return options
