"""Calls that the core defers: their threads, their order and their ends."""

import os
import random
import threading
import time
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.popdist.torch.distributed import ends_of, on_all, world


def deferred(x: torch.Tensor) -> Any:
    """Begin an all-reduce that the core defers, and return its work."""
    made = world()._in_core.made
    work = dist.all_reduce(x, async_op=True)
    assert world()._in_core.made == made + 1
    return work


def test_a_deferred_call_that_no_thread_waits_for_is_made(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> Any:
        x = torch.ones(3)
        work = deferred(x)
        if rank == 0:
            deadline = time.monotonic() + 200
            while not work.is_completed() and time.monotonic() < deadline:
                time.sleep(0.001)
            assert work.is_completed()
            assert work.is_success()
        else:
            work.wait()
        return x.tolist()

    assert on_all(tmp_path, 2, member) == [[2.0] * 3] * 2


def test_members_may_wait_for_deferred_calls_of_two_groups_in_any_order(
    tmp_path: Path,
) -> None:
    def member(rank: int, size: int) -> Any:
        groups = [dist.new_group([0, 1]) for _ in range(2)]
        xs = [torch.ones(3), torch.ones(3)]
        order = (0, 1) if rank else (1, 0)
        for _ in range(20):
            calls = [partial(dist.all_reduce, xs[i], group=groups[i]) for i in order]
            for work in [call(async_op=True) for call in calls]:
                assert work is not None
                work.wait()
        return [x[0].item() for x in xs]

    assert on_all(tmp_path, 2, member) == [[2.0**20] * 2] * 2


def test_other_calls_come_after_the_deferred_ones(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> Any:
        x, y = torch.tensor([1.0, 2.0]), torch.zeros(4)
        works = [deferred(x)]
        # In the core, in Python, and by the group's thread.
        dist.all_gather_single(y, x)
        first = y.tolist()
        works.append(deferred(x))
        dist.all_to_all_single(z := torch.empty(2), x)
        works.append(deferred(x))
        later = dist.all_to_all_single(u := torch.empty(2), x, async_op=True)
        assert later is not None
        later.wait()
        for work in works:
            work.wait()
        return first, z.tolist(), u.tolist()

    expected = [([2.0, 4.0] * 2, [s * 4.0] * 2, [s * 8.0] * 2) for s in (1, 2)]
    assert on_all(tmp_path, 2, member) == expected


def test_a_future_of_a_deferred_call_needs_no_wait(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> Any:
        called = threading.Event()
        x = torch.ones(2)
        work = deferred(x)
        future = work.get_future()
        future.add_done_callback(lambda _: called.set())
        assert called.wait(200)
        return work.wait(), future.value()[0].tolist(), work.result()[0].tolist()

    assert on_all(tmp_path, 2, member) == [(True, [2.0, 2.0], [2.0, 2.0])] * 2


def test_an_error_of_a_deferred_call_is_raised_in_wait(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> str:
        works = [deferred(torch.ones(2 + rank))]
        # The group's thread may have begun the first call by now.
        works.append(dist.all_reduce(torch.ones(2), async_op=True))
        errors = []
        for work in works:
            with pytest.raises(dist.DistBackendError) as raised:
                work.wait()
            errors.append(str(raised.value))
        assert not works[0].is_success()
        assert works[0].exception() is not None
        assert "of 3 float32" in errors[0]
        return errors[1].partition(":")[0]

    ends = ends_of(tmp_path, 2, member, 200)
    assert [end.error for end in ends] == [None, None]
    assert [end.value for end in ends] == ["popdist", "popdist"]


def test_closing_a_group_makes_its_deferred_calls(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> Any:
        x = torch.ones(2)
        work = deferred(x)
        world().shutdown()
        assert work.is_completed()
        return x.tolist()

    assert on_all(tmp_path, 2, member) == [[2.0, 2.0]] * 2


def test_a_deferred_call_refers_to_no_tensor_when_it_is_over(tmp_path: Path) -> None:
    # To free a tensor while Python ends would abort the process.
    def member(rank: int, size: int) -> Any:
        x = torch.ones(2)
        reference, call = weakref.ref(x), deferred(x)._call
        del x
        assert reference() is not None
        deadline = time.monotonic() + 200
        while not call.is_over and time.monotonic() < deadline:
            pass
        return reference()

    assert on_all(tmp_path, 2, member) == [None, None]


def test_a_forked_child_cannot_wait_for_a_deferred_call(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> Any:
        x = torch.ones(2)
        work = deferred(x)
        child = os.fork()
        if not child:
            try:
                work.wait()
            except dist.DistBackendError as error:
                os._exit(0 if "forked" in str(error) else 2)
            os._exit(1)
        status = os.waitpid(child, 0)[1]
        work.wait()
        return os.waitstatus_to_exitcode(status), x.tolist()

    assert on_all(tmp_path, 2, member) == [(0, [2.0, 2.0])] * 2


def test_threads_may_wait_for_each_others_deferred_calls(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> Any:
        choices = random.Random(1)
        xs = [torch.full((1 + i % 7,), float(i)) for i in range(600)]
        works: list[Any] = []
        for index, x in enumerate(xs):
            if choices.random() < 0.1:
                dist.all_reduce(x)
            else:
                works.append(dist.all_reduce(x, async_op=True))
            if choices.random() < 0.05:
                dist.barrier()
            if index % 100 == 99:
                threads = [
                    threading.Thread(target=works[i].wait)
                    for i in choices.sample(range(len(works)), 10)
                ]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
        for work in works:
            work.wait()
        return [x.unique().tolist() for x in xs]

    expected = [[2.0 * i] for i in range(600)]
    assert on_all(tmp_path, 2, member) == [expected] * 2
