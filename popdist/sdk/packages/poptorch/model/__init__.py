"""Modules that run and train as options say, on the replicas of a job."""

from collections.abc import Callable

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
    return _executor(model, options, True, optimizer)


def inferenceModel(
    model: nn.Module | PoplarExecutor, options: Options | None = None
) -> PoplarExecutor:
    """Return an executor that runs a module forward only.

    It has the weights of the module at each call, also while another executor trains
    that.

    Raises:
        Error: An argument is of another type, or gradients are to be accumulated.
    """
    return _executor(model, options, False)


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


# The types of arguments, and their names in PopTorch's errors.
_EXPECTED = {
    "model": (nn.Module, "torch.nn.Module"),
    "options": (Options | None, "poptorch.Options"),
    "optimizer": (torch.optim.Optimizer | None, "torch.optim.Optimizer"),
}


def _executor(
    model: nn.Module | PoplarExecutor,
    options: Options | None,
    training: bool,
    optimizer: torch.optim.Optimizer | None = None,
) -> PoplarExecutor:
    """Return an executor; raise Error if an argument is of another type."""
    module = model._user_model if isinstance(model, PoplarExecutor) else model
    values = {"model": module, "options": options, "optimizer": optimizer}
    for name, (expected, text) in _EXPECTED.items():
        if not isinstance(values[name], expected):
            raise Error(
                f"Invalid type: '{name}' is of type {type(values[name])} "
                f"(Expected {text})"
            )
    return PoplarExecutor(module, options or Options(), training, optimizer)
