"""Messages between two members of a process group."""

import threading
import time
import weakref
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.popdist.torch.distributed import on_all, world

pytestmark = pytest.mark.usefixtures("each_transport")


def test_messages_pass_round_a_ring(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> Any:
        # All receive before any of them sends.
        right, left = (rank + 1) % size, (rank - 1) % size
        received = torch.empty(100_000)
        ops = [
            dist.P2POp(dist.irecv, received, left),
            dist.P2POp(dist.isend, torch.full((100_000,), float(rank)), right),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        return received.unique().tolist()

    assert on_all(tmp_path, 3, member) == [[2], [0], [1]]


def test_messages_are_matched_by_tag(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> Any:
        values = [torch.tensor([tag * (1 - rank)]) for tag in (1, 2, 3)]
        if rank == 0:
            works = [
                dist.isend(value, 1, tag=tag)
                for value, tag in zip(values, (1, 2, 3), strict=True)
            ]
        else:
            works = [
                dist.irecv(value, 0, tag=tag)
                for value, tag in zip(values, (3, 1, 2), strict=True)
            ]
        for work in works:
            work.wait()
        return [value.item() for value in values]

    assert on_all(tmp_path, 2, member) == [[1, 2, 3], [3, 1, 2]]


def test_a_message_is_received_from_any_member(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> Any:
        if rank < 2:
            dist.send(torch.tensor([5.0 + rank]), 2)
            # The end of a member is the end of receives from any.
            dist.barrier()
            return None
        first, second = torch.zeros(1), torch.zeros(1)
        sources = [dist.recv(first), dist.recv(second)]
        dist.barrier()
        return sorted(zip(sources, (first.item(), second.item()), strict=True))

    assert on_all(tmp_path, 3, member) == [None, None, [(0, 5), (1, 6)]]


def test_receives_get_messages_in_the_order_in_which_they_began(
    tmp_path: Path,
) -> None:
    def member(rank: int, size: int) -> Any:
        values = [torch.tensor([float(i)]) for i in range(4)]
        if rank == 0:
            dist.barrier()
            for value in values:
                dist.send(value, 1)
            return None
        received = [torch.zeros(1) for _ in values]
        sources = (None, 0, 0, None)
        begun = [dist.irecv(*call) for call in zip(received, sources, strict=True)]
        dist.barrier()
        for work in begun:
            assert work is not None
            work.wait()
        return [tensor.item() for tensor in received]

    assert on_all(tmp_path, 2, member) == [None, [0.0, 1.0, 2.0, 3.0]]


def test_a_thread_refers_to_no_tensor_once_its_message_is_over(
    tmp_path: Path,
) -> None:
    # To free one while Python ends would abort the process.
    def member(rank: int, size: int) -> list[bool]:
        gone = []

        def note(reference: weakref.ref[torch.Tensor], _: Any) -> None:
            gone.append(reference() is None)

        for length in (1, 1000):
            # A receive before its message, and one after it.
            for _ in range(2):
                x = torch.ones(length)
                work: Any = dist.isend(x, 1) if rank == 0 else dist.irecv(x, 0)
                work._result, reference = None, weakref.ref(x)
                del x
                work.handle().add_done_callback(partial(note, reference))
                work.wait()
                dist.barrier()
        return gone

    assert on_all(tmp_path, 2, member) == [[True] * 4] * 2


def test_receives_from_any_member_fail_once_one_has_left(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> Any:
        x = torch.ones(1)
        if rank:
            dist.send(x, 0)
            world().shutdown()
            while not (tmp_path / "seen").exists():
                time.sleep(0.01)
            return None
        dist.recv(x)
        errors = []
        # The first one may wait when member 1 leaves, the second one comes later.
        for _ in range(2):
            work: Any = dist.irecv(x)
            with pytest.raises(dist.DistBackendError) as failure:
                work.wait(timedelta(seconds=200))
            errors.append(str(failure.value))
        (tmp_path / "seen").touch()
        return errors

    first, second = on_all(tmp_path, 2, member)[0]
    assert "Instance 1 has ended, or closed the group" in first
    assert second == first


def test_a_receive_that_waits_ends_with_the_group(tmp_path: Path) -> None:
    def member(rank: int, size: int) -> Any:
        # From a member that has sent something else, from another one, from any.
        x = torch.ones(1)
        if rank == 1:
            dist.send(x, 0, tag=1)
        works: list[Any] = []
        if rank == 0:
            dist.recv(x, 1, tag=1)
            works = [dist.irecv(x, 1), dist.irecv(x, 2), dist.irecv(x)]
        dist.barrier()
        if rank:
            # The end of another member would be the error of member 0.
            while not (tmp_path / "left").exists():
                time.sleep(0.01)
            return None
        world().shutdown()
        (tmp_path / "left").touch()
        errors = []
        for work in works:
            with pytest.raises(dist.DistBackendError) as failure:
                work.wait()
            errors.append(str(failure.value))
        threads = [one for one in threading.enumerate() if "popdist" in one.name]
        for thread in threads:
            thread.join(200)
        return [one.is_alive() for one in threads], errors

    alive, errors = on_all(tmp_path, 3, member)[0]
    assert not any(alive)
    assert errors == ["popdist: The process group was destroyed."] * 3
