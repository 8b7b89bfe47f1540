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

    def __init__(
        self,
        script: str,
        folder: Path,
        hosts: str = "localhost:1",
        *,
        least: int = 1,
        most: int = 2,
        share: int = 0,
        **options: Any,
    ) -> None:
        file = folder / "hosts.sh"
        file.write_text(script)
        self.warnings: list[str] = []
        question = SearchQuestion(
            members=Members(
                hosts=parse_hosts(hosts), num_instances=len(parse_hosts(hosts))
            ),
            bounds=Bounds(
                least_instances=least,
                most_instances=most,
                share=share,
                slots=1,
                local_replicas=1,
            ),
            losses={},
            interval_s=0.1,
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

    def take_in(self, hosts: str, *missing: str) -> HostsAvailable | None:
        """Return what follows from an answer of the process."""
        names = [str(host) for host in parse_hosts(hosts)] if hosts else []
        self.search._take_in({"hosts": names, "missing": missing})
        return self.search.take()

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
    play.search.finish()
    assert b"/bin/sleep 602" not in commands()


def test_a_host_of_the_job_is_left_out_that_two_answers_do_not_name(
    tmp_path: Path,
) -> None:
    play = Play("echo localhost:1", tmp_path, "localhost:1,old:1")
    play.search.begin()

    assert play.answer() == HostsAvailable(
        hosts=("localhost:1",),
        new_hosts=(),
        num_running=2,
        num_instances=1,
        dropped="the discovery script no longer prints old",
    )
    play.search.finish()


def test_hosts_without_which_the_job_is_too_small_stay(
    tmp_path: Path,
) -> None:
    play = Play("echo localhost:1", tmp_path, "localhost:1,old:1", least=2)
    play.search.begin()

    assert play.warning() == (
        "The discovery script no longer prints old, but the job keeps its hosts: the "
        "others are fewer than --min-instances or --nnodes allow."
    )
    play.search.finish()


def test_as_many_missing_hosts_leave_as_the_minimum_allows(tmp_path: Path) -> None:
    play = Play("", tmp_path, "a:1,b:1,c:1,d:1", least=2, most=4)

    answer = play.take_in("", "b", "c", "d")
    assert answer is not None
    # The first ones in the plan stay.
    assert (answer.hosts, answer.num_instances) == (("a:1", "b:1"), 2)
    assert answer.dropped == "the discovery script no longer prints c and d"
    assert not play.warnings


def test_missing_hosts_stay_only_where_no_others_take_their_places(
    tmp_path: Path,
) -> None:
    play = Play("", tmp_path, "a:1,b:1,c:1", least=3, most=3)

    answer = play.take_in("a:1,d:1", "b", "c")
    assert answer is not None
    assert (answer.hosts, answer.num_instances) == (("a:1", "d:1", "b:1"), 3)
    assert answer.why == (
        "the discovery script no longer prints c and the host d can be used"
    )
    answer = play.take_in("d:1,a:1,e:1", "b", "c")
    assert answer is not None
    assert (answer.hosts, answer.new_hosts) == (("d:1", "a:1", "e:1"), ("d", "e"))
    assert not play.warnings
    # No host of the job may leave for one that has too few slots.
    assert play.take_in("", "b", "c") is None
    assert len(play.warnings) == 1


def test_hosts_join_a_full_job_where_others_are_missing(tmp_path: Path) -> None:
    play = Play("", tmp_path, "a:1,b:1", least=2, most=2, share=1)

    assert play.take_in("a:1,c:1") is None
    answer = play.take_in("a:1,c:1", "b")
    assert answer is not None
    assert (answer.new_hosts, answer.num_instances) == (("c",), 2)
    # They leave one by one.
    assert (answer.dropped, play.take_in("", "b")) == ("", None)


def test_an_answer_that_is_refused_is_a_warning(tmp_path: Path) -> None:
    play = Play(
        "echo localhost:2", tmp_path, refuse=lambda growth: "There are no IPUs."
    )
    play.search.begin()

    assert play.warning() == "There are no IPUs."
    play.search.finish()


def test_a_process_that_is_killed_is_replaced_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = Play("kill -9 $PPID; exec sleep 606", tmp_path)
    play.search.begin()

    expected = "The search for more hosts has ended; it begins again."
    with monkeypatch.context() as without:
        # It waits for all that the process has started.
        without.delattr(processes, "end")
        assert play.warning() == expected
    now = time.monotonic()
    assert now < play.search.deadline(now) < now + 11
    play.search.finish()
    assert play.search.deadline(now) == float("inf")


@pytest.mark.parametrize("stopped", [False, True])
def test_the_end_of_a_process_that_waits_for_a_command_is_not_waited_for(
    tmp_path: Path, *, stopped: bool
) -> None:
    mark = tmp_path / "runs"
    # It ignores signals, as one that hangs does.
    play = Play(f"trap '' TERM; touch {mark}; sleep 604; sleep 604", tmp_path)
    play.search.begin()
    wait_for(lambda: bool(play.turn() or mark.exists()), "the script")
    if stopped:
        play.search.send_signal(signal.SIGSTOP)

    play.search.end()
    # It is a child of this process that has not been reaped.
    assert play.search.is_ending

    def ended() -> bool:
        processes.reap()
        return not play.search.is_ending

    wait_for(ended, "its end")
    assert processes.with_variable(MARK.encode()) == []
    play.search.finish()


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
    play.search.finish()
