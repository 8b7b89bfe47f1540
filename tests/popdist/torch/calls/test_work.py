"""The works of calls that are under way beside the program."""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.popdist.torch.distributed import on_all


def test_calls_may_be_under_way_beside_the_program(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> Any:
        xs = [torch.tensor([i + rank]) for i in range(200)]
        works = [dist.all_reduce(x, async_op=True) for x in xs]
        futures = [work.get_future() for work in works]
        chained = futures[-1].then(lambda done: done.value()[0].item())
        sync = torch.ones(1)
        dist.all_reduce(sync)
        for work in works:
            work.wait()
        with dist._coalescing_manager(async_ops=True) as several:
            dist.all_reduce(first := torch.ones(2))
            dist.all_reduce(second := torch.ones(3))
        several.wait()
        return (
            [x.item() for x in xs] == [2 * i + 1 for i in range(200)],
            futures[7].value()[0].item(),
            chained.wait(),
            sync.item(),
            works[0].is_completed() and works[0].is_success(),
            works[3].result()[0].item(),
            [first.tolist(), second.tolist()],
            works[0].exception(),
        )

    expected = (True, 15, 399, 2, True, 7, [[2, 2], [2, 2, 2]], None)
    assert on_all(tmp_path, 2, member) == [expected] * 2
