"""Modules that run and train as options say, on the replicas of a job."""

from collections.abc import Callable
from types import UnionType

import torch
from torch import nn

from ..enums import ConnectionType
from ..errors import Error
from ..options import Options
from .compile.saved_model import SavedModel
from .executor import PoplarExecutor


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
        AssertionError: PopTorch does not support an optimizer of this class.
        ValueError: PopTorch does not support this variant of the optimizer.
        RuntimeError: Another executor trains this module.
    """
    _check_type("optimizer", optimizer, torch.optim.Optimizer | None)
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


def load(
    filename: str, edit_opts_fn: Callable[[Options], object] | None = None
) -> PoplarExecutor:
    """Return the executor that compileAndExport() or save() has written to a file.

    The file is pickled: load only what you trust.

    Args:
        edit_opts_fn: Called with the options before the executor is made.

    Raises:
        Error: The file is missing, or was written with export_model=False.
    """
    saved = SavedModel.read(filename)
    if saved.module is None or saved.options is None:
        raise Error(
            f"{filename} was written with export_model=False, so it holds no model. "
            "Make one as it was, and call its loadExecutable()."
        )
    options = saved.options.clone()
    if options.connection_type == ConnectionType.Never:
        # Options to compile only: a loaded model is to run.
        options.connectionType(ConnectionType.Always)
    if edit_opts_fn is not None:
        edit_opts_fn(options)
    executor = PoplarExecutor(saved.module, options, saved.training, saved.optimizer)
    executor._take_over(saved)
    return executor


def _module(model: nn.Module | PoplarExecutor) -> nn.Module:
    module = model._user_model if isinstance(model, PoplarExecutor) else model
    _check_type("model", module, nn.Module)
    return module


def _options(options: Options | None) -> Options:
    _check_type("options", options, Options | None)
    return Options() if options is None else options


# Their names in PopTorch's errors.
_EXPECTED = {
    "model": "torch.nn.Module",
    "optimizer": "torch.optim.Optimizer",
    "options": "poptorch.Options",
}


def _check_type(name: str, value: object, expected: type | UnionType) -> None:
    """Raise Error unless an argument is of the expected type."""
    if not isinstance(value, expected):
        raise Error(
            f"Invalid type: '{name}' is of type {type(value)} "
            f"(Expected {_EXPECTED[name]})"
        )
