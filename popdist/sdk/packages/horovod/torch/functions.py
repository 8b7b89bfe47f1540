"""Broadcasts of a model's parameters, an optimizer's state, and any objects."""

import pickle
from collections.abc import Iterable, Mapping
from io import BytesIO
from typing import Any

import torch
from torch import Tensor

from ..common.process_sets import ProcessSet, global_process_set
from .calls.submission import BASICS, broadcast_tensors, gather_tensors


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
        _overwrite(tensors, root_rank, None, process_set)


def _overwrite(
    tensors: list[Tensor], root_rank: int, name: str | None, process_set: ProcessSet
) -> None:
    """Overwrite tensors with those of one rank."""
    broadcast_tensors(
        tensors, root_rank, name, process_set, in_place=True, now=True
    ).wait()


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


# Any, because objects of all types that can be pickled are taken.
def broadcast_object(
    obj: Any = None,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the object of one rank, on all ranks.

    Args:
        obj: What can be pickled; of other ranks than the root it does not count.
        root_rank: Whose object it is.
        name: By which the ranks' calls are matched.
        process_set: The ranks that take part.
    """
    is_root = BASICS.rank() == root_rank
    data = _pickled(obj) if is_root else torch.empty(0, dtype=torch.uint8)
    length = torch.tensor([len(data)], dtype=torch.int64)
    names = [name and f"object.{name}.{part}" for part in ("length", "data")]
    _overwrite([length], root_rank, names[0], process_set)
    if not is_root:
        data = torch.empty(int(length), dtype=torch.uint8)
    _overwrite([data], root_rank, names[1], process_set)
    return obj if is_root else _unpickled(data)


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Return a list of all ranks' objects, which can be pickled."""
    data = _pickled(obj)
    length = torch.tensor([len(data)], dtype=torch.int64)
    full = None if name is None else f"object.{name}"
    handle = gather_tensors([data, length], full, process_set, now=True)
    whole, lengths = handle.wait()
    return [_unpickled(part) for part in whole.split(lengths.tolist())]


def _pickled(obj: Any) -> Tensor:
    content = BytesIO()
    pickle.dump(obj, content)
    # Without another copy: an optimizer's state may be most of the memory.
    return torch.frombuffer(content.getbuffer(), dtype=torch.uint8)


def _unpickled(data: Tensor) -> Any:
    # Any: an array is as good as bytes, but not declared so.
    content: Any = data.numpy()
    return pickle.loads(content)
