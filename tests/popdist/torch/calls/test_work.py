"""The works of calls that are under way beside the program."""

import threading
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.popdist.torch.distributed import PREMUL_SUM, on_all, world


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


@pytest.mark.parametrize("length", [2, 1 << 20])
def test_the_thread_of_calls_refers_to_no_tensor_when_one_is_over(
    tmp_path: Path, length: int
) -> None:
    # To free a tensor while Python ends would abort the process.
    def member(rank: int, size: int) -> list[int]:
        gate, leftovers = threading.Event(), []
        world().engine_group.submit("gate", gate.wait, True)
        x, parts = torch.ones(length), [torch.empty(length) for _ in range(size)]
        calls = (
            partial(dist.all_reduce, x),
            partial(dist.all_reduce, x, PREMUL_SUM(2.0)),
            partial(dist.broadcast, x, 0),
            partial(dist.all_gather, parts, x),
            partial(dist.all_to_all, parts, parts[::-1]),
        )
        works: list[Any] = [call(async_op=True) for call in calls]
        references = [weakref.ref(tensor) for tensor in (x, *parts)]

        class NotingEvent(threading.Event):
            def set(self) -> None:
                super().set()
                leftovers.append(sum(each() is not None for each in references))
                over.set()

        # The last of the calls: those before it refer to the same tensors.
        over = threading.Event()
        works[-1]._handle._done = NotingEvent()
        del calls, works, x, parts
        gate.set()
        assert over.wait(200)
        return leftovers

    assert on_all(tmp_path, 2, member) == [[0], [0]]
