"""The process that looks for hosts: its answers, its ends, and what it leaves."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import wait_for

from poprun.helpers import processes
from poprun.host_specs import parse_hosts
from poprun.output import waiter
from poprun.plan.elastic import Bounds, Members
from poprun.reach.host_search import SearchQuestion
from poprun.supervise.host_search import HostSearch
from poprun.wire.events import HostsAvailable

# No other test may have it: they run at the same time.
MARK = f"POPDIST_JOB_ID={os.urandom(8).hex()}"


class Play:
    """A search by a command, on a job that has one instance here."""

    def __init__(self, script: str, folder: Path, **options: Any) -> None:
        file = folder / "hosts.sh"
        file.write_text(script)
        self.warnings: list[str] = []
        question = SearchQuestion(
            members=Members(hosts=parse_hosts("localhost:1"), num_instances=1),
            bounds=Bounds(
                least_instances=1, most_instances=2, slots=1, local_replicas=1
            ),
            losses={},
            settings={
                "host-discovery-script": f"sh {file}",
                "ssh": "ssh",
                "synchronise-python-venv": False,
            },
        )
        self.search = HostSearch(
            question, os.environ, MARK, self.warnings.append, **options
        )

    def turn(self) -> HostsAvailable | None:
        now = time.monotonic()
        due = min(self.search.deadline(now), now + 0.1)
        waiter.serve(self.search.interests(now), due)
        self.search.tick(time.monotonic())
        return self.search.take()

    def answer(self) -> HostsAvailable:
        limit = time.monotonic() + 200
        while (answer := self.turn()) is None:
            assert time.monotonic() < limit
        return answer

    def warning(self) -> str:
        wait_for(lambda: bool(self.turn() or self.warnings), "a warning")
        return self.warnings[0]


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    assert processes.with_variable(MARK.encode()) == []


def test_hosts_are_found_and_nothing_is_left(tmp_path: Path) -> None:
    # A process that hides from its parent and from the environment.
    hiding = "(setsid env -i /bin/sleep 602 >/dev/null 2>&1 &)"
    play = Play(f"{hiding}; echo localhost:2", tmp_path)
    play.search.begin()
    play.search.begin()

    assert play.answer() == HostsAvailable(
        hosts=("localhost:2",), new_hosts=(), num_running=1, num_instances=2
    )

    def commands() -> list[bytes]:
        below = processes.descendants([os.getpid()])
        return [processes.describe(p)[1] for p in below]

    wait_for(lambda: b"/bin/sleep 602" in commands(), "the process that hides")
    play.search.end()
    assert b"/bin/sleep 602" not in commands()


def test_an_answer_that_is_refused_is_a_warning(tmp_path: Path) -> None:
    play = Play(
        "echo localhost:2", tmp_path, refuse=lambda growth: "There are no IPUs."
    )
    play.search.begin()

    assert play.warning() == "There are no IPUs."
    play.search.end()


def test_a_process_that_is_killed_is_replaced_later(tmp_path: Path) -> None:
    play = Play("kill -9 $PPID", tmp_path)
    play.search.begin()

    expected = "The search for more hosts has ended; it begins again."
    assert play.warning() == expected
    now = time.monotonic()
    assert now < play.search.deadline(now) < now + 11
    play.search.end()
    assert play.search.deadline(now) == float("inf")


def test_a_process_that_is_stopped_is_ended(tmp_path: Path) -> None:
    play = Play("echo localhost:2", tmp_path)
    play.search.begin()
    play.turn()
    play.search.send_signal(signal.SIGSTOP)

    play.search.end()


def test_it_ends_with_poprun(tmp_path: Path) -> None:
    """It is told that its parent is gone, and ends what it has started."""
    mark = tmp_path / "runs"
    play = Play(f"touch {mark}; exec sleep 603", tmp_path)
    play.search.begin()
    wait_for(lambda: bool(play.turn() or mark.exists()), "the script")
    [own] = [
        p for p in processes.with_variable(MARK.encode()) if p.parent == os.getpid()
    ]

    # The signal that the kernel sends then.
    processes.send(signal.SIGTERM, own)
    wait_for(lambda: not processes.with_variable(MARK.encode()), "its end")
    processes.reap()
    play.search.end()
