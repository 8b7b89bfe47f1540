"""Calls that the core takes; for members they equal the calls made in Python."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.popdist.torch.distributed import PREMUL_SUM, ends_of, on_all, world

OP = dist.ReduceOp
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8)

# torch has newer names for some of what its users call.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def taken(call: Callable[[], object]) -> bool:
    """Return whether the core takes a call."""
    before = world()._in_core.made
    call()
    return bool(world()._in_core.made > before)


def strided(tensor: torch.Tensor) -> torch.Tensor:
    """Return an equal tensor with gaps between its elements."""
    return torch.stack([tensor, tensor], -1)[..., 0]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_member_may_make_the_same_call_outside_the_core(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    def member(rank: int, size: int) -> Any:
        form = strided if rank == 2 else torch.Tensor.clone
        own = torch.arange(1, 5, dtype=dtype).view(2, 2) + rank
        total, shared = form(own), form(own)
        whole, part = form(torch.zeros(6, 2, dtype=dtype)), form(own[0])
        wide = form(torch.arange(6, dtype=dtype).view(3, 2))
        in_core = [
            taken(lambda: dist.all_reduce(total)),
            taken(lambda: dist.broadcast(shared, 1)),
            taken(lambda: dist.all_gather_into_tensor(whole, form(own))),
            taken(lambda: dist.reduce_scatter_tensor(part, wide)),
        ]
        assert in_core == [rank != 2] * 4
        results = total.tolist(), shared.tolist(), whole.tolist()
        return results, part.tolist()

    gathered = [[1 + 2 * i % 4 + i // 2, 2 + 2 * i % 4 + i // 2] for i in range(6)]
    results = [[6, 9], [12, 15]], [[2, 3], [4, 5]], gathered
    assert on_all(tmp_path, 3, member) == [
        (results, [6 * i, 6 * i + 3]) for i in range(3)
    ]


def test_what_the_core_does_not_take_has_the_same_result(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> Any:
        ones = torch.ones(4)
        negative = torch._neg_view(torch.ones(4))
        weights = torch.ones(4, requires_grad=True)
        options = dist.AllreduceOptions()
        options.asyncOp, options.timeout = False, timedelta(seconds=100)
        whole = torch.zeros(2 * size)
        whole[2 * rank :] = rank + 1
        tensors = [
            negative,
            torch.ones(2, dtype=torch.complex64),
            torch.ones(3, dtype=torch.int64),
        ]
        took = [
            taken(lambda: dist.all_reduce(negative)),
            taken(lambda: world().allreduce([tensors[1]])),
            taken(lambda: dist.all_reduce(tensors[2], OP.BAND)),
            taken(lambda: world().allreduce([ones], options)),
            taken(lambda: dist.all_reduce(torch.nn.Parameter(weights))),
            # A member's own part of the result, and a part that is another's.
            taken(lambda: dist.all_gather_single(whole, whole[2 * rank :][:2])),
            taken(lambda: dist.all_gather_single(whole, whole[1:3])),
            taken(lambda: dist.reduce_scatter_single(whole[:2], whole)),
        ]
        return took, [x.tolist() for x in (*tensors, ones, weights.detach(), whole)]

    took = [False, False, False, False, False, True, False, False]
    values = [[-2.0] * 4, [2 + 0j] * 2, [1.0] * 3, [2.0] * 4, [2.0] * 4]
    wholes = [[2.0, 4.0, 1.0, 2.0], [2.0, 4.0, 1.0, 2.0]]
    assert on_all(tmp_path, 2, member) == [(took, [*values, x]) for x in wholes]


def test_every_reduction_of_torch_has_a_hash_of_its_own() -> None:
    # By these the core tells them apart.
    kinds: Any = OP.RedOpType
    others = set(kinds.__members__.values()) - {OP.PREMUL_SUM}
    hashes = {hash(dist.ReduceOp(kind)) for kind in others}
    assert len(hashes | {hash(PREMUL_SUM(2.0))}) == len(others) + 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool], ids=str)
def test_a_mean_of_bools_is_refused_outside_the_core(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    def member(rank: int, size: int) -> Any:
        x = torch.tensor([rank * 3], dtype=dtype)
        if dtype is torch.bool:
            with pytest.raises(RuntimeError, match="AVG"):
                dist.all_reduce(x, OP.AVG)
        else:
            assert taken(lambda: dist.all_reduce(x, OP.AVG))
        return x.item()

    means = [False, True] if dtype is torch.bool else [1.5, 1.5]
    assert on_all(tmp_path, 2, member) == means


def test_options_and_tensors_that_do_not_fit_are_refused_as_ever(
    tmp_path: Path,
) -> None:
    def member(rank: int, size: int) -> Any:
        options = dist.BroadcastOptions()
        options.rootRank, options.asyncOp = 2, False
        with pytest.raises(RuntimeError, match="invalid root rank: 2"):
            world().broadcast([torch.ones(1)], options)
        with pytest.raises(RuntimeError, match="4 elements for 2 times 3"):
            dist.all_gather_single(torch.ones(4), torch.ones(3))
        with pytest.raises(RuntimeError, match="3 elements for 2 times 2"):
            dist.reduce_scatter_single(torch.ones(2), torch.ones(3))
        with pytest.raises(RuntimeError, match="expanded"):
            dist.all_reduce(torch.ones(1).expand(3))
        return world()._in_core.made

    assert on_all(tmp_path, 2, member) == [0, 0]


def test_a_mismatch_and_a_closed_group_are_explained(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> None:
        calls = [
            partial(dist.all_gather_single, torch.ones(4), torch.ones(2)),
            partial(dist.all_reduce, torch.ones(2)),
        ]
        with pytest.raises(dist.DistBackendError, match="all_gather"):
            calls[rank]()
        world().shutdown()
        with pytest.raises(dist.DistBackendError, match="closed"):
            dist.all_reduce(torch.ones(2))

    ends = ends_of(tmp_path, 2, member, 20)
    assert [end.error for end in ends] == [None, None]
