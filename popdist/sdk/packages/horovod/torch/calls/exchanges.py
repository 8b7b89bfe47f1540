"""Horovod's calls that hand tensors on from rank to rank.

They are matched as those that reduce tensors are.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor

from ...common.calls.submission import HorovodHandle
from ...common.process_sets import ProcessSet, global_process_set
from . import gradients
from .torch_calls import TORCH_CALLS
from .variants import of_one_tensor, variants


def grouped_allgather(
    tensors: Sequence[Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Return the ranks' tensors, one after the other along the first dimension.

    They may differ in that, and in no other.
    """
    begin = partial(TORCH_CALLS.gather, name=name, process_set=process_set)
    gradient = partial(gradients.of_allgather, process_set)
    gathered: list[Tensor] = gradients.results_of(begin, gradient, list(tensors))
    return gathered


def grouped_allgather_async(
    tensors: Sequence[Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> HorovodHandle:
    """Begin what grouped_allgather() does, and return a handle for synchronize()."""
    return TORCH_CALLS.gather(list(tensors), name, process_set)


allgather = of_one_tensor(grouped_allgather)
allgather_async = of_one_tensor(grouped_allgather_async)


def broadcast(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Return the tensor of one rank, on all ranks.

    Args:
        tensor: Of the same shape and dtype on all ranks.
        root_rank: Whose it is: its number among all ranks, also in a process set.
        name: By which the ranks' calls are matched.
        process_set: The ranks that take part.
    """
    begin = partial(
        TORCH_CALLS.broadcast, root_rank=root_rank, name=name, process_set=process_set
    )
    gradient = partial(gradients.of_broadcast, root_rank, process_set)
    copied: list[Tensor] = gradients.results_of(begin, gradient, [tensor])
    return copied[0]


def _begin_broadcast(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    *,
    in_place: bool,
    now: bool,
) -> HorovodHandle:
    return TORCH_CALLS.broadcast(
        [tensor], root_rank, name, process_set, in_place=in_place, now=now
    ).first()


broadcast_async, broadcast_, broadcast_async_ = variants(_begin_broadcast, broadcast)


def alltoall(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Hand each rank its rows of this rank's tensor, and return what this one gets.

    Args:
        tensor: Its rows go to the ranks in their order.
        splits: How many rows each rank gets. None for equal numbers.
        name: By which the ranks' calls are matched.
        process_set: The ranks that take part.

    Returns the tensor and, if splits are given, how many rows each rank has sent.
    """
    begin = partial(
        TORCH_CALLS.exchange, splits=splits, name=name, process_set=process_set
    )
    gradient = partial(gradients.of_alltoall, process_set)
    rows, received = gradients.results_of(begin, gradient, [tensor])
    return rows if splits is None else (rows, received)


def alltoall_async(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> HorovodHandle:
    """Begin what alltoall() does, and return a handle for synchronize()."""
    handle = TORCH_CALLS.exchange([tensor], splits, name, process_set)
    return handle if splits is not None else handle.first()
