"""The backend in torch.distributed's tables."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.rendezvous import _rendezvous_handlers

from popdist.torch.backend.process_group import ProcessGroupPopdist
from popdist.torch.backend.registration import register
from tests.popdist.torch.distributed import on_all


@pytest.fixture
def _group(request: pytest.FixtureRequest) -> Iterator[None]:
    dist.init_process_group(request.param, store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("_group", ["popdist", "cpu:popdist"], indirect=True)
@pytest.mark.usefixtures("_group")
def test_the_backend_takes_tensors_of_the_cpu() -> None:
    group: Any = dist.group.WORLD
    assert isinstance(group, ProcessGroupPopdist)
    assert dist.Backend.backend_capability["popdist"] == ["cpu"]


def test_the_entry_points_registration_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (dist, distributed_c10d):
        monkeypatch.setattr(module, "monitored_barrier", module.monitored_barrier)
    helper = "_new_process_group_helper"
    monkeypatch.setattr(distributed_c10d, helper, getattr(distributed_c10d, helper))
    monkeypatch.setitem(_rendezvous_handlers, "env", _rendezvous_handlers["env"])
    before = dist.Backend._plugins["POPDIST"], _rendezvous_handlers["popdist"]

    register()

    assert dist.Backend._plugins["POPDIST"] is before[0]
    assert _rendezvous_handlers["popdist"] is before[1]


def test_groups_know_what_their_members_are_called(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> Any:
        group: Any = dist.new_group([1, 2])
        if rank == 0:
            return None
        return list(group.engine_group.transport.instances), group.rank()

    assert on_all(tmp_path, 3, member) == [None, ([1, 2], 0), ([1, 2], 1)]


@pytest.mark.parametrize("_group", ["gloo"], indirect=True)
@pytest.mark.usefixtures("_group")
def test_monitored_barriers_of_other_backends_stay_torchs() -> None:
    with pytest.warns(UserWarning, match="specify timeout arg as a timedelta"):
        dist.monitored_barrier(timeout=30.5)  # type: ignore[arg-type]


def test_a_monitored_barrier_takes_seconds(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> Any:
        dist.monitored_barrier(timeout=30.5)  # type: ignore[arg-type]
        return True

    assert on_all(tmp_path, 2, member) == [True, True]


def test_flight_recorder_is_attached_to_groups_of_other_backends_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attached = []

    def _maybe_attach_flight_recorder(group: Any, config: Any, ranks: Any) -> None:
        attached.append(group)

    usual = _maybe_attach_flight_recorder
    # torch 2.15 has this function.
    monkeypatch.setattr(distributed_c10d, usual.__name__, usual, raising=False)
    for module in (dist, distributed_c10d):
        monkeypatch.setattr(module, "monitored_barrier", module.monitored_barrier)
    monkeypatch.setitem(_rendezvous_handlers, "env", _rendezvous_handlers["env"])
    register()
    attach: Any = distributed_c10d._maybe_attach_flight_recorder

    ours = ProcessGroupPopdist(dist.HashStore(), 0, 1)
    attach(ours, "", [0])
    attach("gloo's", "", [0])
    ours.shutdown()

    assert attached == ["gloo's"]
