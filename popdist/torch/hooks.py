"""Communication hooks for DistributedDataParallel over a popdist process group.

model.register_comm_hook(dist.group.WORLD, popdist.torch.reduce_now)
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket

from popdist.torch import tensors
from popdist.torch.backend.process_group import ProcessGroupPopdist
from popdist.torch.calls.untraced import untraced
from popdist.torch.calls.work import CompletedWork, backend_errors
from popdist.torch.tensor_rows import empty_in


@untraced
def reduce_now(
    group: ProcessGroupPopdist | None, bucket: GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket of gradients before the backward pass continues.

    If each instance has just one core, this is faster than an overlap with the backward
    pass: the reduction would only take time from it.

    Args:
        group: The process group; None for the default one.
    """
    chosen: Any = group or dist.group.WORLD
    buffer = bucket.buffer()
    with backend_errors():
        tensors.all_reduce(chosen.engine_group, [buffer], "mean")
    return CompletedWork(buffer).get_future()


class ArenaBuckets:
    """A hook's state that keeps a tensor in the arena for each bucket of a model.

    Buckets are copied there, and reduced in place.
    """

    def __init__(self, group: ProcessGroupPopdist | None = None) -> None:
        self.group: Any = group or dist.group.WORLD
        # By number, size and dtype: DDP makes new buckets after the first step.
        self._tensors: dict[tuple[int, int, torch.dtype], Tensor] = {}

    def tensor_for(self, bucket: GradBucket) -> Tensor:
        """Return this bucket's tensor in the arena."""
        buffer = bucket.buffer()
        key = bucket.index(), buffer.numel(), buffer.dtype
        if key not in self._tensors:
            self._tensors[key] = empty_in(
                self.group.engine_group, buffer.shape, buffer.dtype
            )
        return self._tensors[key]


@untraced
def reduce_in_arena(
    state: ArenaBuckets, bucket: GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket in the arena before the backward pass continues."""
    tensor = state.tensor_for(bucket)
    tensor.copy_(bucket.buffer())
    bucket.set_buffer(tensor)
    return reduce_now(state.group, bucket)
