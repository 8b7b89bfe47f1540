"""Communication hooks of DistributedDataParallel, bucket by bucket."""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from popdist.torch.hooks import ArenaBuckets, reduce_in_arena, reduce_now
from tests.popdist.torch.distributed import on_all, world


class Bucket:
    """The part of torch's GradBucket that a hook uses."""

    def __init__(self, index: int, tensor: torch.Tensor) -> None:
        self._index, self._tensor = index, tensor

    def index(self) -> int:
        return self._index

    def buffer(self) -> torch.Tensor:
        return self._tensor

    def set_buffer(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor


def test_a_bucket_is_averaged_before_the_hook_returns(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> Any:
        bucket: Any = Bucket(0, torch.full((3,), float(rank)))
        future = reduce_now(None, bucket)
        half = dist.new_group([0, 1])
        among: Any = Bucket(0, torch.full((2,), float(rank)))
        if rank < 2:
            reduce_now(half, among)
        return (
            future.done(),
            future.value() is bucket.buffer(),
            bucket.buffer().tolist(),
            among.buffer().tolist(),
        )

    assert on_all(tmp_path, 3, member) == [
        (True, True, [1, 1, 1], [0.5, 0.5]),
        (True, True, [1, 1, 1], [0.5, 0.5]),
        (True, True, [1, 1, 1], [2, 2]),
    ]


def test_buckets_are_reduced_in_tensors_of_the_arena_that_are_kept(
    tmp_path: Path,
) -> None:
    def member(rank: int, size: int) -> Any:
        state = ArenaBuckets()
        averages, addresses = [], []
        # New tensors in each step, of other sizes after the first one, as DDP's are.
        for length in (1 << 15, 1 << 16, 1 << 16):
            for index in range(2):
                gradient = torch.full((length,), float(rank + index))
                bucket: Any = Bucket(index, gradient)
                reduce_in_arena(state, bucket)
                averages.append(bucket.buffer().unique().tolist())
                addresses.append(bucket.buffer().data_ptr())
        return (
            averages,
            len(set(addresses)),
            addresses[2:4] == addresses[4:],
            world().engine_group.runs["arena"],
        )

    expected = ([[0.5], [1.5]] * 3, 4, True, 6)
    assert on_all(tmp_path, 2, member) == [expected] * 2
