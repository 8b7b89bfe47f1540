"""Reductions of torch.distributed over the engine, against what torch promises."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.popdist.torch.distributed import PREMUL_SUM, on_all, world

OP = dist.ReduceOp
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64)

# torch has newer names for some of what its users call.
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.usefixtures("each_transport"),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_all_reduce_by_every_operation(tmp_path: Path, dtype: torch.dtype) -> None:
    def member(rank: int, size: int) -> Any:
        results = []
        for op in (OP.SUM, OP.AVG, OP.PRODUCT, OP.MIN, OP.MAX):
            x = torch.tensor([rank + 1, 2], dtype=dtype)
            dist.all_reduce(x, op)
            assert x.dtype == dtype
            results.append(x.tolist())
        return results

    results = [[6, 6], [2, 2], [6, 8], [1, 2], [3, 2]]
    assert on_all(tmp_path, 3, member) == [results] * 3


def test_all_reduce_of_bits(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> Any:
        bits = []
        for op in (OP.BAND, OP.BOR, OP.BXOR):
            x = torch.tensor([3 - rank, 5])
            dist.all_reduce(x, op)
            bits.append(x.tolist())
        return bits

    assert on_all(tmp_path, 3, member) == [[[0, 5], [3, 5], [0, 5]]] * 3


def test_all_reduce_multiplies_first(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> Any:
        x = torch.ones(2)
        dist.all_reduce(x, PREMUL_SUM(2.5))
        return x.tolist()

    assert on_all(tmp_path, 3, member) == [[7.5, 7.5]] * 3


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (lambda rank: torch.tensor([1 + 2j]) * rank, [3 + 6j]),
        (lambda rank: torch.arange(4.0).view(2, 2).t(), [[0, 6], [3, 9]]),
        (
            lambda rank: torch.eye(3)[rank : rank + 1].to_sparse(),
            [[1, 1, 1]],
        ),
    ],
    ids=["complex", "strided", "sparse"],
)
def test_all_reduce_of_every_kind_of_tensor(
    tmp_path: Path, tensor: Any, expected: list[Any]
) -> None:
    def member(rank: int, size: int) -> Any:
        x = tensor(rank)
        dist.all_reduce(x)
        return (x.to_dense() if x.is_sparse else x).tolist()

    assert on_all(tmp_path, 3, member) == [expected] * 3


def test_reduce_gives_the_result_to_the_root(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> Any:
        x = torch.tensor([rank + 1.0])
        dist.reduce(x, 1)
        return x.tolist() if rank == 1 else None

    assert on_all(tmp_path, 3, member) == [None, [6], None]


def test_several_tensors_are_reduced_in_one_call(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> Any:
        xs = [torch.tensor([float(rank)]), torch.tensor([1.0, 2.0])]
        dist.all_reduce_coalesced(xs)
        return [x.tolist() for x in xs]

    assert on_all(tmp_path, 3, member) == [[[3], [3, 6]]] * 3


def test_the_tensors_of_one_all_reduce_are_added_up_too(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> Any:
        # Each of them counts as if it had a member.
        pair = [torch.tensor([2.0 * rank]), torch.tensor([2.0 * rank + 1])]
        world().allreduce(pair).wait()
        halves = [torch.tensor([rank]), torch.tensor([8])]
        # Other reductions than the engine's have one result for each.
        world().allreduce(halves, OP.BOR).wait()
        return [x.tolist() for x in (*pair, *halves)]

    assert on_all(tmp_path, 3, member) == [[[15], [15], [3], [8]]] * 3


def test_reduce_scatter_gives_each_member_its_part(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> Any:
        out = torch.empty(2)
        dist.reduce_scatter_tensor(out, torch.arange(2.0 * size))
        return out.tolist()

    assert on_all(tmp_path, 3, member) == [[0, 3], [6, 9], [12, 15]]


def test_parts_of_reduce_scatter_differ_in_size(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> Any:
        out = torch.empty(rank)
        dist.reduce_scatter(out, [torch.full((i,), 1.0) for i in range(size)])
        return out.tolist()

    assert on_all(tmp_path, 3, member) == [[], [3], [3, 3]]


def test_reduce_scatter_of_bits(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> Any:
        out = torch.empty(1, dtype=torch.int32)
        parts = [torch.tensor([1 << i], dtype=torch.int32) for i in range(size)]
        dist.reduce_scatter(out, parts, OP.BOR)
        return out.tolist()

    assert on_all(tmp_path, 3, member) == [[1], [2], [4]]
