"""torch's parallel training over popdist process groups, against one process's."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

from popdist.engine.group import Group
from popdist.torch import hooks
from tests.popdist.torch.distributed import ends_of, on_all

pytestmark = pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning"
)


def network(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to(dtype)


def samples() -> torch.Tensor:
    return torch.linspace(-1, 1, 12 * 8).view(12, 8)


def train(model: nn.Module, inputs: torch.Tensor, steps: int = 3) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()


def flat(parameters: Iterable[torch.Tensor]) -> list[float]:
    # Tensors would go through file descriptors of a member that has ended.
    return torch.cat([p.detach().reshape(-1) for p in parameters]).tolist()


def check_like_one_process(found: list[float]) -> None:
    model = network()
    train(model, samples())
    expected = flat(model.parameters())
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected))


@pytest.mark.parametrize("hook", ["none", "now", "arena"])
def test_data_parallel_training_is_that_of_one_process(
    tmp_path: Path, hook: str
) -> None:
    def member(rank: int, size: int) -> Any:
        model = DistributedDataParallel(network(), bucket_cap_mb=0.0001)
        if hook == "now":
            model.register_comm_hook(None, hooks.reduce_now)
        if hook == "arena":
            model.register_comm_hook(hooks.ArenaBuckets(), hooks.reduce_in_arena)
        sampler = DistributedSampler(list(samples()), shuffle=False)
        train(model, samples()[list(sampler)])
        return flat(model.module.parameters())

    for parameters in on_all(tmp_path, 3, member):
        check_like_one_process(parameters)


# Calls of up to 1 MiB are deferred in the core, and longer ones submitted in Python.
@pytest.mark.parametrize("width", [10, 1000])
def test_the_death_of_a_member_is_an_error_in_the_backward_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    # With fewer cores, calls of a backward pass are made at once.
    monkeypatch.setattr(Group, "cores", 64)

    def member(rank: int, size: int) -> str:
        model = DistributedDataParallel(nn.Linear(width, 1000))
        x = torch.ones(1, width)
        for _ in range(3):
            model(x).sum().backward()
        if rank == 1:
            os._exit(0)
        with pytest.raises(RuntimeError) as raised:
            model(x).sum().backward()
        return str(raised.value)

    survivor = ends_of(tmp_path, 2, member, 200)[0]
    assert survivor.code == 0, survivor
    assert "DistBackendError: popdist: Instance 1 has ended" in survivor.value


def test_members_with_fewer_inputs_join_the_others(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> Any:
        model = DistributedDataParallel(nn.Linear(2, 1, bias=False))
        found = []
        for by_all in (False, True):
            with model.join(divide_by_initial_world_size=by_all):
                for _ in range(1 + rank):
                    model(torch.ones(1, 2)).sum().backward()
                    found.append(model.module.weight.grad.tolist())
                    model.zero_grad()
        return found

    whole, part = [[1, 1]], [[0.5, 0.5]]
    assert on_all(tmp_path, 2, member) == [
        [whole, whole],
        [whole, whole, whole, part],
    ]


@pytest.mark.parametrize("arena", [False, True])
def test_fully_sharded_training_is_that_of_one_process(
    tmp_path: Path, arena: bool
) -> None:
    def member(rank: int, size: int) -> Any:
        mesh, model = init_device_mesh("cpu", (size,)), network()
        for layer in (model[0], model[2], model):
            sharded = fully_shard(layer, mesh=mesh)
            assert isinstance(sharded, FSDPModule)
            sharded.set_allocate_memory_from_process_group_for_comm(arena)
        train(model, samples().chunk(size)[rank])
        return flat(p.full_tensor() for p in model.parameters())

    for parameters in on_all(tmp_path, 3, member):
        check_like_one_process(parameters)


def test_tensor_parallel_inference_in_bfloat16(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> Any:
        model = network(torch.bfloat16)
        inputs = samples().bfloat16()
        expected = model(inputs)
        parallelize_module(
            model,
            init_device_mesh("cpu", (size,)),
            {"0": ColwiseParallel(), "2": RowwiseParallel()},
        )
        torch.testing.assert_close(model(inputs), expected, atol=0.02, rtol=0.02)
        return True

    assert on_all(tmp_path, 2, member) == [True] * 2
