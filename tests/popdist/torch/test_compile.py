"""torch.compile of programs that call torch.distributed over popdist."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.popdist.torch.distributed import on_all

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning"
)


def test_calls_that_no_graph_takes_are_made_between_graphs(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> Any:
        @torch.compile(backend="eager")
        def step(x: torch.Tensor) -> torch.Tensor:
            y, z = x * 2, x + 1
            dist.broadcast(y, src=1)
            work = dist.all_reduce(z, async_op=True)
            y = y + 1
            work.wait()
            if rank == 0:
                dist.send(y, 1)
            else:
                dist.recv(x, 0)
            return y + z + x

        return [step(torch.full((2,), rank + i)).tolist() for i in range(3)]

    assert on_all(tmp_path, 2, member) == [
        [[6, 6], [11, 11], [16, 16]],
        [[9, 9], [15, 15], [21, 21]],
    ]


def test_compiled_data_parallel_model_averages_gradients(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> Any:
        # torch 2.15 warns that it leaves DDP's record_function out.
        logging.disable(logging.WARNING)
        model = DistributedDataParallel(nn.Linear(2, 1, bias=False))
        compiled = torch.compile(model, backend="eager")
        for _ in range(2):
            compiled(torch.full((1, 2), rank + 1.0)).sum().backward()
        return model.module.weight.grad.tolist()

    assert on_all(tmp_path, 2, member) == [[[3, 3]]] * 2
