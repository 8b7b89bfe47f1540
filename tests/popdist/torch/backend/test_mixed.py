"""Groups that share their tensors with another backend, by device.

The other device is "meta": its tensors have no memory. Its backend is torch's "fake"
and does nothing, so no test needs a GPU.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.testing._internal.distributed.fake_pg
from torch.distributed import distributed_c10d

from popdist.torch.backend.mixed import MixedGroup
from popdist.torch.backend.process_group import ProcessGroupPopdist
from tests.popdist.torch.distributed import on_all

META = torch.device("meta")


def mixed_group(ranks: list[int] | None = None) -> Any:
    return dist.new_group(ranks, backend="cpu:popdist,meta:fake")


def test_tensors_go_to_the_backend_of_their_device(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> Any:
        group = mixed_group()
        ours, other = torch.tensor([rank + 1.0]), torch.empty(2, device=META)
        for tensor in (ours, other):
            dist.all_reduce(tensor, group=group)
            dist.broadcast(tensor, 0, group=group)
            dist.all_gather([tensor.clone(), tensor.clone()], tensor, group=group)
            dist.all_to_all([tensor, tensor], [tensor, tensor], group=group)
        gathered = [tensor.clone() for _ in range(size)] if rank == 0 else None
        dist.gather(other, gathered, group=group)
        dist.scatter(other, gathered, group=group)
        if rank == 0:
            dist.send(other, 1, group=group)
        else:
            dist.recv(other, 0, group=group)
        dist.barrier(group)
        names: list[Any] = [None] * size
        dist.all_gather_object(names, f"rank {rank}", group=group)
        return ours.tolist(), names

    assert on_all(tmp_path, 2, member) == [([3.0], ["rank 0", "rank 1"])] * 2


def test_a_mixed_group_answers_what_torch_asks(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> Any:
        group = mixed_group()
        backends = [group._get_backend(torch.device(d)) for d in ("cpu", META)]
        return (
            dist.get_backend(group),
            [device.type for device in group._device_types],
            [type(backend).__name__ for backend in backends],
        )

    answers = (
        "cpu:popdist,meta:fake",
        ["cpu", "meta"],
        ["MixedGroup", "FakeProcessGroup"],
    )
    assert on_all(tmp_path, 2, member) == [answers] * 2


def test_torch_forgets_a_mixed_group_that_is_destroyed(tmp_path: Path) -> None:
    def tables() -> list[int]:
        world: Any = distributed_c10d._world
        names = ("pg_map", "pg_names", "pg_backend_config", "pg_to_tag")
        groups = [group for tag in world.tags_to_pg.values() for group in tag]
        return [*(len(getattr(world, name)) for name in names), len(groups)]

    def member(rank: int, size: int) -> Any:
        before = tables()
        group = mixed_group()
        during = tables()
        dist.destroy_process_group(group)
        assert tables()[:4] == before[:4]
        return [now - then for now, then in zip(during, before, strict=True)]

    assert on_all(tmp_path, 1, member) == [[1, 1, 1, 1, 2]]


def test_a_member_of_none_gets_none_and_the_others_their_group(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> Any:
        group = mixed_group([1, 2])
        if rank == 0:
            return None
        tensor = torch.ones(1)
        dist.all_reduce(tensor, group=group)
        return tensor.item()

    assert on_all(tmp_path, 3, member) == [None, 2.0, 2.0]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_group_is_popdists_alone_where_the_other_device_is_absent(
    tmp_path: Path,
) -> None:
    def member(rank: int, size: int) -> Any:
        group: Any = dist.new_group(backend="cpu:popdist,cuda:nccl")
        with pytest.raises(RuntimeError) as refusal:
            dist.all_reduce(torch.empty(1, device=META), group=group)
        dist.all_reduce(tensor := torch.ones(1), group=group)
        return type(group) is ProcessGroupPopdist, tensor.item(), str(refusal.value)

    sentence = (
        "popdist all_reduce: The tensor is on meta, but popdist exchanges tensors in "
        "the CPU's memory. Call cpu() first."
    )
    assert on_all(tmp_path, 2, member) == [(True, 2.0, sentence)] * 2


def test_all_methods_of_torchs_groups_that_take_tensors_are_passed_on() -> None:
    own = vars(MixedGroup)
    called = {
        name
        for parent in ProcessGroupPopdist.__mro__[:-1]
        if parent is not dist.ProcessGroup
        for name in vars(parent)
        if hasattr(dist.ProcessGroup, name) and not name.startswith("__")
    }

    # torch 2.15 lacks one of these.
    assert called - set(own) <= {
        *("_get_backend_name", "_get_sequence_number_for_group"),
        *("_set_group_desc", "_set_group_name", "_set_sequence_number_for_group"),
        *("get_group_store", "group_desc", "group_name", "monitored_barrier", "name"),
    }
