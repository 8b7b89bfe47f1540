"""Process groups: their members, and what happens when one of them does not come."""

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import wait_for

from popdist.session import STATE
from popdist.settings import Settings
from tests.popdist.engine.members import Me, errors, run, waits_in
from tests.popdist.torch.distributed import ends_of, on_all, world

pytestmark = pytest.mark.usefixtures("each_transport")


def test_new_groups_are_of_their_members(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> Any:
        even, odd = dist.new_group([0, 2]), dist.new_group([1, 3])
        mine = odd if rank % 2 else even
        x = torch.tensor([float(rank)])
        dist.all_reduce(x, group=mine)
        y = torch.tensor([float(rank)])
        dist.broadcast(y, 2 + rank % 2, group=mine)
        dist.destroy_process_group(mine)
        alone, _ = dist.new_subgroups(1)
        dist.all_reduce(z := torch.ones(1), group=alone)
        return x.item(), y.item(), z.item()

    assert on_all(tmp_path, 4, member) == [(2, 2, 1), (4, 3, 1), (2, 2, 1), (4, 3, 1)]


def test_a_member_that_does_not_come_is_named(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    def member(rank: int, size: int) -> None:
        dist.barrier()
        if rank == 1:
            for other in (0, 2):
                wait_for((tmp_path / f"{other}").exists, "the others' errors")
        if rank == 0:
            # Member 0 gives up, when member 2 waits: that would be named, too.
            world().set_timeout(timedelta(seconds=1))
            if "shm" in request.node.name:
                pid = world().engine_group.pidfds[2].pid
                wait_for(lambda: waits_in(pid, 2), "member 2")
        try:
            dist.all_reduce(torch.ones(1))
        finally:
            (tmp_path / f"{rank}").touch()

    texts = [str(e.error) for e in ends_of(tmp_path, 3, member, timeout=1000)]
    assert "Instance 1 did not take its part in all_reduce (sum, oneshot)" in texts[0]
    assert "Here that is the timeout of init_process_group" in texts[0]
    assert texts[2].startswith("popdist: ")
    # Over sockets, instance 1 may read the others' rows before their errors, and have a
    # result.
    if "shm" in request.node.name:
        assert "Instance 1 is in no call since call 1, barrier." in texts[0]
        assert texts[1].startswith("popdist: ")


def test_members_wait_as_long_as_the_process_group_says(tmp_path: Path) -> None:
    def member(me: Me) -> None:
        dist.init_process_group(
            "popdist",
            store=dist.FileStore(str(tmp_path / "store"), 2),
            rank=0,
            world_size=2,
            timeout=timedelta(seconds=1.5),
        )

    (alone,) = errors(run(1, member))

    assert alone is not None
    assert alone[1].startswith("popdist: Instance 0 has waited 1.5 s for instance 1 to")


def test_a_member_that_dies_is_named(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> None:
        if rank == 1:
            raise SystemExit
        with pytest.raises(dist.DistBackendError, match="Instance 1 has ended"):
            world().allreduce([torch.ones(1)]).wait()
        # torch's future raises only the text of an error of a callback.
        with pytest.raises(RuntimeError, match="DistBackendError: popdist: ") as text:
            world().allreduce([torch.ones(1)]).get_future().wait()
        assert type(text.value) is RuntimeError
        with pytest.raises(dist.DistBackendError, match="Instance 1 ended before"):
            dist.recv(torch.ones(1), 1)

    ended = ends_of(tmp_path, 3, member, timeout=200)
    assert [type(e.error) for e in ended] == [type(None), SystemExit, type(None)]


def test_a_call_that_waits_for_other_members_is_reported(tmp_path: Path) -> None:
    report = tmp_path / "stderr"

    def num_reports() -> int:
        return report.read_text().count("has waited")

    def member(rank: int, size: int) -> None:
        x = torch.ones(2)
        if rank == 0:
            os.dup2(os.open(report, os.O_CREAT | os.O_WRONLY), 2)
        calls = (
            lambda: dist.all_reduce(x),
            lambda: dist.all_reduce(x, async_op=True).wait(),
            dist.barrier,
            dist.monitored_barrier,
            lambda: torch.ops.popdist.all_reduce(x),
            lambda: dist.send(x, 0) if rank else dist.recv(x, 1),
            dist.new_group,
        )
        for number, call in enumerate(calls):
            begun = tmp_path / f"call {number}"
            if rank:
                wait_for(lambda: begun.exists() and begun.read_text() != "", "rank 0")  # noqa: B023
                before = int(begun.read_text())
                wait_for(lambda: num_reports() > before, "a report")  # noqa: B023
            else:
                begun.write_text(str(num_reports()))
            call()
            dist.barrier()

    STATE.__dict__["settings"] = Settings(stall=0.2)
    try:
        ended = ends_of(tmp_path, 2, member, timeout=1000)
    finally:
        del STATE.__dict__["settings"]
    waits = [
        line.split(" in ", 1)[-1]
        for line in report.read_text().splitlines()
        if "has waited" in line
    ]
    assert [one.error for one in ended] == [None, None]
    for what in (
        "all_reduce (sum, oneshot) of 2 float32.",
        "barrier.",
        "monitored_barrier.",
        "recv of 8 bytes.",
    ):
        assert what in waits
    assert waits.count("all_reduce (sum, oneshot) of 2 float32.") == 3
    assert "to join the group of instances 0 and 1" in report.read_text()
