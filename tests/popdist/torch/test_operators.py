"""The all-reduce as an operator of torch, and tensors in the arena."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import popdist.torch
from tests.popdist.torch.distributed import on_all


def test_tensors_in_the_arena_are_reduced_where_they_lie(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> Any:
        group: Any = dist.group.WORLD
        x = popdist.torch.empty(64, 1024, dtype=torch.bfloat16).fill_(rank + 1)
        dist.all_reduce(x)
        y = group.allocate_tensor(1 << 15, dtype=torch.float32).fill_(rank)
        dist.all_reduce(y[1:], dist.ReduceOp.MAX)
        nothing = popdist.torch.empty((0, 3))
        dist.all_reduce(nothing)
        return x.unique().tolist(), y[:2].tolist(), group.engine_group.runs["arena"]

    assert on_all(tmp_path, 2, member) == [
        ([3.0], [0.0, 1.0], 2),
        ([3.0], [1.0, 1.0], 2),
    ]


def test_operators_reduce_and_have_gradients(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> Any:
        ops = torch.ops.popdist
        group = dist.group.WORLD.group_name
        x = torch.full((3,), rank + 1.0, requires_grad=True)
        total = ops.all_reduce(x, "sum", group)
        (total * (rank + 1)).sum().backward()
        y = torch.full((2,), rank, dtype=torch.int32)
        ops.all_reduce_(y, "max")
        tilted = torch.arange(4.0).view(2, 2).t()
        long = torch.ones(1 << 15)
        return (
            total.tolist(),
            x.grad.tolist(),
            y.tolist(),
            ops.all_reduce(tilted, "mean").tolist(),
            popdist.torch.all_reduce(long).unique().tolist(),
        )

    expected = ([3.0] * 3, [3.0] * 3, [1, 1], [[0.0, 2.0], [1.0, 3.0]], [2.0])
    assert on_all(tmp_path, 2, member) == [expected] * 2


# torch 2.15 hides it from programs, but not where warnings are errors.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_operators_compile_and_are_checked_by_torch() -> None:
    dist.init_process_group("popdist", store=dist.HashStore(), rank=0, world_size=1)
    try:
        x = torch.ones(3, requires_grad=True)
        torch.library.opcheck(torch.ops.popdist.all_reduce, (x, "sum", ""))
        torch.library.opcheck(torch.ops.popdist.all_reduce_, (torch.ones(3), "sum", ""))

        @torch.compile(backend="aot_eager", fullgraph=True)
        def layer(x: torch.Tensor) -> torch.Tensor:
            y = x * 2
            torch.ops.popdist.all_reduce_(y)
            return torch.ops.popdist.all_reduce(y) + 1

        assert layer(torch.ones(3)).tolist() == [3, 3, 3]
        with pytest.raises(RuntimeError, match="no gradient for op 'max'"):
            torch.ops.popdist.all_reduce(x, "max").sum().backward()
    finally:
        dist.destroy_process_group()
