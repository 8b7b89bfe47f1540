"""PopTorch's functions that run on an IPU without a model."""

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import nn

from .enums import Compiler
from .errors import Error
from .model import PoplarExecutor, inferenceModel
from .options import Options


class _Function(nn.Module):
    """A function as a model, with the module that holds its weights."""

    # Any: whatever the function takes and returns, here and below.
    def __init__(self, function: Callable[..., Any], model: nn.Module | None) -> None:
        super().__init__()
        self._function = function
        self.model = model

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)


def IPUContext(
    func: Callable[..., Any] | None = None,
    *,
    compiler: Compiler = Compiler.MLIR,
    options: Options | None = None,
    training: bool = False,
    optimizer: torch.optim.Optimizer | None = None,
    dict_optimizer: dict[str, Any] | None = None,
    model: nn.Module | None = None,
    per_replica_params: dict[str, Any] | None = None,
) -> Any:
    """Return an executor of a function, or a decorator that makes one.

    Args:
        compiler: Has no effect.
        model: The module that holds the function's weights.

    Raises:
        Error: It is to train, or weights are to differ between replicas.
    """
    if training or optimizer is not None or dict_optimizer or per_replica_params:
        raise Error(
            "poptorch.experimental.IPUContext runs functions forward only in this "
            "emulation. To train, make the function the forward() of a module, and "
            "use poptorch.trainingModel."
        )

    def make(function: Callable[..., Any]) -> PoplarExecutor:
        return inferenceModel(_Function(function, model), options)

    return make if func is None else make(func)


class IPUScope:
    """A block of code that an IPU's compiler records: it raises Error."""

    def __init__(self, *_: object, **__: object) -> NoReturn:
        raise Error(
            "poptorch.experimental.IPUScope cannot be emulated: it records the code of "
            "a block, to run it later. Make the code a function, and give it to "
            "poptorch.experimental.IPUContext."
        )
