"""Horovod's calls that hand tensors on from rank to rank.

They are matched as those that reduce tensors are.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ...common.process_sets import ProcessSet, global_process_set
from . import gradients
from .single_calls import of_one_tensor
from .submission import (
    HorovodHandle,
    broadcast_tensors,
    exchange_tensor,
    gather_tensors,
)


def grouped_allgather(
    tensors: Sequence[Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Return the ranks' tensors, one after the other along the first dimension.

    They may differ in that, and in no other.
    """
    tensors = list(tensors)
    if gradients.needed(tensors):
        return list(gradients.apply(gradients.Allgather, name, process_set, *tensors))
    gathered: list[Tensor] = gather_tensors(tensors, name, process_set, now=True).wait()
    return gathered


def grouped_allgather_async(
    tensors: Sequence[Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> HorovodHandle:
    """Begin what grouped_allgather() does, and return a handle for synchronize()."""
    return gather_tensors(list(tensors), name, process_set, now=False)


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
    if gradients.needed([tensor]):
        copied: Tensor = gradients.apply(
            gradients.Broadcast, name, root_rank, process_set, tensor
        )
        return copied
    handle = broadcast_tensors(
        [tensor], root_rank, name, process_set, in_place=False, now=True
    )
    result: Tensor = handle.first().wait()
    return result


def broadcast_async(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> HorovodHandle:
    """Begin what broadcast() does, and return a handle for synchronize()."""
    return broadcast_tensors(
        [tensor], root_rank, name, process_set, in_place=False, now=False
    ).first()


def broadcast_(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Do what broadcast() does in place, and return the tensor."""
    handle = broadcast_tensors(
        [tensor], root_rank, name, process_set, in_place=True, now=True
    )
    result: Tensor = handle.first().wait()
    return result


def broadcast_async_(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> HorovodHandle:
    """Begin what broadcast_() does, and return a handle for synchronize()."""
    return broadcast_tensors(
        [tensor], root_rank, name, process_set, in_place=True, now=False
    ).first()


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
    if gradients.needed([tensor]):
        both = gradients.apply(gradients.Alltoall, name, splits, process_set, tensor)
    else:
        both = exchange_tensor(tensor, splits, name, process_set, now=True).wait()
    return both[0] if splits is None else both


def alltoall_async(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> HorovodHandle:
    """Begin what alltoall() does, and return a handle for synchronize()."""
    handle = exchange_tensor(tensor, splits, name, process_set, now=False)
    return handle if splits is not None else handle.first()
