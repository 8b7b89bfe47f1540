"""Broadcasts of a model's parameters, and of an optimizer's state."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..common.calls.objects import broadcast_object
from ..common.calls.submission import BASICS
from ..common.process_sets import ProcessSet, global_process_set
from .calls.torch_calls import TORCH_CALLS


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Overwrite parameters with those of one rank.

    Args:
        params: model.state_dict(), model.named_parameters() or model.parameters(); the
            same on all ranks.
        root_rank: Whose they become.
        process_set: The ranks that take part.

    Raises:
        ValueError: params is none of these.
    """
    tensors = _tensors_of(params)
    if tensors:
        TORCH_CALLS.overwrite(tensors, root_rank, process_set)


def _tensors_of(params: Mapping[str, Any] | Iterable[Any]) -> list[Tensor]:
    if isinstance(params, Mapping):
        values = [params[name] for name in sorted(params)]
    elif isinstance(params, Iterable) and not isinstance(params, Tensor | str):
        values = [pair[1] if isinstance(pair, tuple) else pair for pair in params]
    else:
        raise ValueError(
            f"params is {type(params).__name__}, but must be a model's state_dict(), "
            "named_parameters() or parameters()."
        )
    tensors = [value for value in values if value is not None]
    for value in tensors:
        if not isinstance(value, Tensor):
            raise ValueError(
                f"params has an entry of {type(value).__name__}, but only tensors can "
                "be broadcast. Use broadcast_object() for other objects."
            )
    return tensors


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: torch.nn.Module | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Overwrite an optimizer's options and state with those of one rank.

    As in Horovod, the parameters of an optimizer without state have gradients, which
    are zero, after it.

    Args:
        optimizer: Of the same parameters on all ranks; it may lack state.
        root_rank: Whose state it becomes.
        model: Not used here.
        process_set: The ranks that take part.

    Raises:
        ValueError: It is an LBFGS, whose state is not made of tensors alone.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(
            "The state of torch.optim.LBFGS cannot be broadcast. Use another optimizer."
        )
    if not optimizer.state:
        _add_gradients(optimizer)
    state = broadcast_object(
        optimizer.state_dict(), root_rank, "optimizer_state", process_set
    )
    if BASICS.rank() != root_rank:
        optimizer.load_state_dict(state)


def _add_gradients(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        for param in group["params"]:
            if param.requires_grad and param.grad is None:
                param.grad = torch.zeros_like(param)
