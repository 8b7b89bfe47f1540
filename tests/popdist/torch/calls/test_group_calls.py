"""The order and the options of a process group's calls."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional_collectives

from tests.popdist.torch.distributed import ends_of, on_all, world

OP = dist.ReduceOp

# torch has newer names for some of what its users call.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def test_small_asynchronous_calls_are_made_in_order_whoever_waits(
    tmp_path: Path,
) -> None:
    def member(rank: int, size: int) -> Any:
        given = [torch.full((1 + i,), float(rank + i)) for i in range(40)]
        works = [dist.all_reduce(x, async_op=True) for x in given]
        # The program drops this work and its tensor. The next call is synchronous.
        dist.all_reduce(torch.ones(1000), async_op=True)
        between = torch.ones(3, dtype=torch.bfloat16)
        dist.all_reduce(between)
        for work in reversed(works) if rank else works:
            assert work is not None
            work.wait()
        reduce: Any = functional_collectives.all_reduce
        functional = [reduce(torch.full((9,), i), "sum", world()) for i in range(3)]
        maximum = dist.all_reduce(given[0], OP.MAX, async_op=True)
        assert maximum is not None
        maximum.get_future().wait()
        return (
            [x.unique().tolist() for x in given[1:]],
            between.tolist(),
            [x.unique().tolist() for x in functional],
            given[0].tolist(),
        )

    sums = [[2.0 * i + 1] for i in range(1, 40)]
    expected = sums, [2.0] * 3, [[0], [2], [4]], [1.0]
    assert on_all(tmp_path, 2, member) == [expected] * 2


def test_calls_that_have_not_begun_are_counted(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> Any:
        counts = [world()._get_sequence_number_for_group()]
        works = []
        for x in (torch.ones(2), torch.ones(1 << 20)):
            if rank:
                # They cannot end before the other member has counted, too.
                works.append(world().allreduce([x]))
            counts.append(world()._get_sequence_number_for_group())
        for x in (torch.ones(2), torch.ones(1 << 20)):
            if not rank:
                works.append(world().allreduce([x]))
        for work in works:
            work.wait()
        dist.barrier()
        counts.append(world()._get_sequence_number_for_group())
        return counts

    assert on_all(tmp_path, 2, member) == [[0, 0, 0, 3], [0, 1, 2, 3]]


def test_calls_take_a_root_and_a_timeout_of_their_own(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> Any:
        x, opts = torch.tensor([rank + 1.0]), dist.AllreduceOptions()
        second = x.clone()
        opts.timeout = timedelta(seconds=0.1)
        if rank == 0:
            opts.asyncOp = False
            with pytest.raises(dist.DistBackendError, match=r"waiting 0\.1 s for"):
                world().allreduce([x], opts)
            opts.asyncOp = True
            with pytest.raises(dist.DistBackendError, match=r"waiting 0\.1 s for"):
                world().allreduce([second], opts).wait()
            dist.send(torch.ones(1), 1)
        else:
            dist.recv(torch.ones(1), 0)
            world().allreduce([x]).wait()
            world().allreduce([second]).wait()
        # The calls that nothing waited for are over, too, and ended no group.
        world().broadcast(y := torch.tensor([float(rank)]), 1).wait()
        world().reduce(y, 0, OP.MAX, timedelta(seconds=200)).wait()
        both = [torch.zeros(1), torch.zeros(1)] if rank == 1 else []
        gather = world().gather(both, y, 1, timeout=timedelta(seconds=200))
        gathered = gather.get_future().wait()
        calls = world()._get_sequence_number_for_group()
        dist.all_reduce(torch.ones(1))
        made = world()._get_sequence_number_for_group() - calls
        return [x.item(), second.item()], [one.item() for one in gathered], made

    expected = [([3, 3], [], 1), ([3, 3], [1, 1], 1)]
    assert on_all(tmp_path, 2, member) == expected


# torch 2.10 warns at each profile.
@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events:UserWarning")
def test_torch_profiler_records_calls(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> Any:
        x = torch.ones(size)
        with torch.profiler.profile() as profile:
            dist.all_reduce(x)
            dist.broadcast(x, 0)
            dist.reduce_scatter_tensor(torch.empty(1), x)
            dist.all_reduce(x, async_op=True).wait()
        events = profile.events()
        return [e.name for e in events if e.name.startswith("popdist:")]

    expected = ["all_reduce", "broadcast", "reduce_scatter", "all_reduce"]
    # Not on_all(): the profiler writes to stderr.
    found = [end.value for end in ends_of(tmp_path, 2, member, timeout=200)]
    assert found == [[f"popdist:{name}" for name in expected]] * 2
