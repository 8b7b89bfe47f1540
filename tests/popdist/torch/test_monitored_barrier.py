"""A monitored barrier names the members that do not come."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import wait_for

from popdist.torch import monitored_barrier
from tests.popdist.torch.distributed import ends_of, on_all, world

pytestmark = pytest.mark.usefixtures("each_transport")


def wait_long_for_member_1() -> None:
    """Let this member, which is 0, give up because of member 2 alone.

    Member 1 may be slow. The limit is that of the wait for member 2.
    """
    usual: Any = monitored_barrier._is_through

    def is_through(message: Any, deadline: float) -> bool:
        more = 200 if message.peer == 1 else 0
        return bool(usual(message, deadline + more))

    monitored_barrier._is_through = is_through


def test_a_monitored_barrier_names_who_does_not_come(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> str:
        dist.monitored_barrier()
        if rank == 2:
            for other in (0, 1):
                wait_for((tmp_path / f"{other}").exists, "the others' errors")
            return ""
        if rank == 0:
            wait_long_for_member_1()
        with pytest.raises(dist.DistBackendError) as late:
            dist.monitored_barrier(timeout=timedelta(seconds=3))
        (tmp_path / f"{rank}").touch()
        return str(late.value)

    texts = on_all(tmp_path, 3, member)
    assert texts[0] == "popdist: Rank 2 failed to pass monitoredBarrier in 3000 ms."
    assert "Rank 1 successfully reached monitoredBarrier, but received" in texts[1]


def test_a_monitored_barrier_follows_one_that_has_failed(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> str:
        # Member 2 comes when member 0 has given up.
        if rank == 2:
            dist.recv(torch.ones(1), 0)
        if rank == 0:
            wait_long_for_member_1()
        with pytest.raises(dist.DistBackendError) as failure:
            dist.monitored_barrier(timeout=timedelta(seconds=200 if rank else 3))
        if rank == 0:
            dist.send(torch.ones(1), 2)
        for _ in range(3):
            dist.monitored_barrier()
        return str(failure.value)

    received = (
        "successfully reached monitoredBarrier, but received errors while waiting for "
        "send/recv from rank 0: it gave up, because rank 2 has not come."
    )
    assert on_all(tmp_path, 3, member) == [
        "popdist: Rank 2 failed to pass monitoredBarrier in 3000 ms.",
        f"popdist: Rank 1 {received}",
        f"popdist: Rank 2 {received}",
    ]


def test_a_monitored_barrier_names_who_ends_in_it(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> None:
        if rank == 1:
            # A member does this first in its first barrier.
            dist.recv(torch.ones(1), 0)
            world().send([torch.ones(1)], 0, -2).wait()
            raise SystemExit
        if rank == 0:
            dist.send(torch.ones(1), 1)
            # The barrier's answer comes after this, so no buffer takes it.
            dist.isend(torch.ones(1 << 20), 1)
            with pytest.raises(dist.DistBackendError, match="Rank 1 ended in monitor"):
                dist.monitored_barrier()
        else:
            with pytest.raises(dist.DistBackendError, match="Instance 1"):
                dist.recv(torch.ones(1), 1)
            dist.monitored_barrier()

    ended = ends_of(tmp_path, 3, member, timeout=1000)
    errors = [each.error for each in ended]
    assert [errors[0], errors[2]] == [None, None]
    assert isinstance(errors[1], SystemExit)


def test_a_monitored_barrier_names_who_has_ended(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> str:
        if rank:
            raise SystemExit
        with pytest.raises(dist.DistBackendError) as late:
            dist.monitored_barrier(wait_all_ranks=True)
        with pytest.raises(dist.DistBackendError, match="Rank 0 timed out"):
            world().monitored_barrier(timedelta(0))
        return str(late.value)

    ended = ends_of(tmp_path, 3, member, timeout=1000)
    assert str(ended[0].value).startswith("popdist: Ranks 1, 2 failed to pass")
