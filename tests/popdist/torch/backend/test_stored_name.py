"""Process groups that meet by a store of earlier groups."""

import re
import time
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.popdist.engine.members import Me, Members, errors, results
from tests.popdist.torch.distributed import ends_of


def total() -> float:
    dist.all_reduce(tensor := torch.ones(1))
    return tensor.item()


def test_groups_follow_each_other_in_one_store(tmp_path: Path) -> None:
    def member(me: Me) -> list[float]:
        store = dist.FileStore(str(tmp_path / "store"), me.size)
        totals = []
        for _ in range(3):
            if me.rank == 0:
                time.sleep(0.3)
            dist.init_process_group(
                "popdist", store=store, rank=me.rank, world_size=me.size
            )
            totals.append(total())
            dist.destroy_process_group()
        return totals

    assert results(3, member) == [[3.0] * 3] * 3


def test_the_name_of_an_earlier_attempt_in_the_store_is_ignored(tmp_path: Path) -> None:
    def attempt(late: int) -> list[Any]:
        def member(me: Me) -> float:
            if me.rank == late:
                time.sleep(0.5)
            # Kept until the process is gone, so that it leaves its file.
            globals()["store"] = dist.FileStore(str(tmp_path / "store"), 8)
            dist.init_process_group(
                "popdist", store=globals()["store"], rank=me.rank, world_size=me.size
            )
            return total()

        return results(3, member)

    assert [attempt(late) for late in (2, 0, 1)] == [[3.0] * 3] * 3


def test_a_member_with_another_torch_warns_once(tmp_path: Path) -> None:
    def member(me: Me) -> list[str]:
        version = torch.__version__
        torch.__version__ = ["2.9.1", "2.9.1+cu130", "2.8.0+cpu"][me.rank]
        store = dist.FileStore(str(tmp_path / "store"), me.size)
        try:
            with warnings.catch_warnings(record=True) as given:
                warnings.simplefilter("always")
                dist.init_process_group(
                    "popdist", store=store, rank=me.rank, world_size=me.size
                )
                dist.new_group()
        finally:
            torch.__version__ = version
            dist.destroy_process_group()
        return [str(one.message) for one in given if "torch 2" in str(one.message)]

    assert results(3, member) == [
        *([], []),
        [
            "Instance 2 has torch 2.8.0, but instance 0 has torch 2.9.1: their results "
            "may differ, and so may the calls that they make. Install the same version "
            "on all hosts."
        ],
    ]


def test_a_member_that_has_ended_is_missed_in_a_new_group(tmp_path: Path) -> None:
    for dead in (0, 1, 2):

        def member(rank: int, size: int, dead: int = dead) -> None:
            if rank == dead:
                raise SystemExit
            dist.new_group([0, 1, 2])

        (tmp_path / str(dead)).mkdir()
        ended = ends_of(tmp_path / str(dead), 3, member, timeout=1000)
        texts = [str(error) for kind, error in filter(None, errors(ended)) if error]
        assert len(texts) == 2
        for text in texts:
            # One that has raised the error ends as well, and may be named to the other.
            assert re.fullmatch(
                rf"popdist: Instances? (\d and )?{dead}( and \d)? ended before "
                r"(it|they) could join the group of instances 0, 1 and 2\. "
                r"Look above for (its|their) last output\.",
                text,
            )


def test_a_store_that_cannot_be_reached_is_an_error(tmp_path: Path) -> None:
    def member(me: Me) -> None:
        port = tmp_path / "port"
        if me.rank == 0:
            server = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
            port.write_text(str(server.port))
            me.hear()
            return
        while not (port.exists() and port.read_text()):
            time.sleep(0.01)
        store = dist.TCPStore("127.0.0.1", int(port.read_text()), None, False)
        me.say("connected")
        me.hear()
        dist.init_process_group(
            *("popdist", None, timedelta(seconds=1000)),
            store=store,
            rank=me.rank - 1,
            world_size=2,
        )

    with Members(3, member) as members:
        for rank in (1, 2):
            assert members.hear(rank) == "connected"
        members.tell(0, None)
        while not members.finished([0]):
            time.sleep(0.01)
        for rank in (1, 2):
            members.tell(rank, None)
        ended = members.finish()
    assert ended[0].code == 0
    for one in ended[1:]:
        assert "The store by which the members of a process group find" in str(
            one.error
        )
