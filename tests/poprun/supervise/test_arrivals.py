"""Hosts that are to join a running attempt; the search and the agents are played."""

import json
import os
import socket
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from conftest import wait_for

from poprun.errors import HostError, LaunchError
from poprun.helpers import processes
from poprun.host.local_host import LocalHost
from poprun.host.remote_host import RemoteHost
from poprun.host_specs import HostSpec
from poprun.output import waiter
from poprun.plan.slurm import SlurmJob
from poprun.reach.connections import agents
from poprun.reach.connections.agents import AgentStart
from poprun.reach.connections.other_command import find_command
from poprun.reach.connections.srun import Srun
from poprun.supervise import arrivals, generations
from poprun.supervise.arrivals import Arrivals, Handshake, Question
from poprun.supervise.membership import Membership, first_members
from poprun.wire import protocol
from poprun.wire.channel import Channel
from poprun.wire.events import HostJoins, HostLeaves, HostsAvailable, ReformAsked

FOUND = HostsAvailable(
    hosts=("a", "b", "c"), new_hosts=("b", "c"), num_running=1, num_instances=3
)


class PlayedSearch:
    def __init__(self) -> None:
        self.found: HostsAvailable | None = None
        self.missing: list[str] = []
        self.has_ended, self.is_ending = False, True
        self.is_finished = False

    def begin(self) -> None: ...

    def describe_missing(self, *hosts: str) -> str:
        return f"{hosts[0]} is missing"

    def take(self) -> HostsAvailable | None:
        found, self.found = self.found, None
        return found

    def end(self) -> None:
        self.has_ended = True

    def finish(self) -> None:
        self.is_finished = True


class PlayedStart:
    """The start of an agent, whose connection answers what the test says."""

    def __init__(self, host: HostSpec) -> None:
        self.host = host
        self.connection: Any = None
        self.failure, self.deadline = "", float("inf")
        self.is_closed = False
        self.has_ended = False
        self.ours, self.agent = socket.socketpair()
        self.asked: list[bytes] = []
        self.hung_up: list[bool] = []
        self.answers: list[list[tuple[int, list[bytes]]] | None] = []

    def begin(self) -> None:
        self.connection = SimpleNamespace(
            fileno=self.ours.fileno,
            pid=0,
            has_answered=True,
            channel=SimpleNamespace(send=self.asked.append, has_unsent=False),
            hang_up=lambda: self.hung_up.append(True),
            has_exited=lambda now: now >= 5.0,
            exits_by=5.0,
            receive=lambda: self.answers.pop(0),
            read_answer=self._read_answer,
            end=self.end,
        )

    def _read_answer(self, kind: int, fields: list[bytes], answer_type: Any) -> Any:
        if kind == protocol.REFUSAL:
            raise LaunchError("It refuses.")
        return fields[0]

    def receive(self) -> None: ...

    def tick(self, now: float) -> None: ...

    def give_up(self, limit_s: float) -> None:
        self.failure = f"It does not answer in {limit_s:.0f} s."

    def end(self) -> None:
        self.has_ended = True
        self.ours.close()
        self.agent.close()


class PlayedGrowth:
    """There is room for hosts; each is asked one question."""

    def __init__(self) -> None:
        self.searches: list[PlayedSearch] = []
        self.starts: dict[str, PlayedStart] = {}
        self.losses: Counter[str] = Counter()
        self.refused: set[str] = set()
        self.has_room = True
        self.admitted: list[str] = []
        self.asked = "/"

    def question(self, losses: Counter[str]) -> Any:
        self.losses = losses
        return "where?" if self.has_room else None

    def search(self, question: Any) -> Any:
        self.searches.append(PlayedSearch())
        return self.searches[-1]

    def connect(self, host: HostSpec) -> Any:
        if host.name in self.refused:
            raise HostError(f"{host.name} cannot be connected.")
        if host.name not in self.starts:
            self.starts[host.name] = PlayedStart(host)
        return self.starts[host.name]

    def handshake(self, host: HostSpec, connection: Any) -> Handshake:
        answer = yield Question(protocol.DESCRIBE_HOST, self.asked, None)

        def admit() -> Any:
            self.admitted.append(host.name)
            if answer == b"in vain":
                raise HostError(f"{host.name} has no room.")
            return host.name, answer

        return admit


class Play:
    def __init__(self) -> None:
        self.growth, self.warnings = PlayedGrowth(), list[str]()
        played: Any = self.growth
        self.arrivals = Arrivals(played, self.warnings.append)
        assert self.look() == []

    def look(self) -> list[Any]:
        return list(self.arrivals.look())

    def find(self) -> None:
        """Let the search find two hosts."""
        self.growth.searches[-1].found = FOUND
        assert self.look() == []

    def receive(self, host: str, *messages: tuple[int, list[bytes]] | None) -> None:
        """Let the agent of a host send its hello, and then messages."""
        start = self.growth.starts[host]
        fileno = start.connection.fileno()
        for message in (None, *messages):
            if message is not None:
                start.answers.append([message])
            for interest in self.arrivals.interests(0):
                if interest.descriptor == fileno:
                    interest.call()


@pytest.fixture
def play() -> Iterator[Play]:
    play = Play()
    yield play
    play.arrivals.end()
    play.arrivals.finish()


@pytest.fixture(autouse=True)
def no_interests_of_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlayedSearch, "interests", lambda self, now: (), raising=False)
    monkeypatch.setattr(PlayedSearch, "tick", lambda self, now: None, raising=False)


def test_hosts_join_when_they_have_answered_each_on_its_own(play: Play) -> None:
    play.find()
    play.receive("c", (protocol.ALIVE, []), (protocol.REPLY, [b"x"]))

    assert play.look() == [("c", b"x")]
    # The members have changed: the next question is another one.
    assert play.growth.searches[0].has_ended
    play.receive("b", (protocol.REPLY, [b"y"]))
    assert play.look() == [("b", b"y")]
    assert not play.warnings
    for start in play.growth.starts.values():
        start.end()


def test_a_host_that_fails_is_looked_for_again_and_counts_as_lost(play: Play) -> None:
    play.growth.refused = {"b"}
    play.find()
    play.receive("c", (protocol.REFUSAL, []))
    assert play.look() == []

    assert play.warnings == ["b cannot be connected.", "It refuses."]
    assert play.growth.losses == {"b": 1, "c": 1}
    assert play.growth.starts["c"].hung_up
    assert [search.has_ended for search in play.growth.searches] == [True, False]


def test_a_host_that_does_not_answer_in_time_is_given_up(
    play: Play,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arrivals, "ANSWER_LIMIT_S", 0.0)
    play.find()
    play.receive("c")
    play.arrivals.tick(float("inf"))
    assert play.look() == []

    assert play.warnings == [
        "It does not answer in 0 s.",
        "The host c cannot join: its agent does not answer within 0 s.",
    ]


def test_each_answer_of_a_host_has_its_own_time(
    play: Play,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # poprun is stopped from the start of the agent until its hello has come.
    now = 0.0
    monkeypatch.setattr(arrivals, "time", SimpleNamespace(monotonic=lambda: now))
    play.find()
    now = 100.0
    for host in ("b", "c"):
        play.receive(host)
    play.arrivals.tick(now)
    assert play.look() == []

    assert play.warnings == []
    play.growth.starts["c"].answers.append([(protocol.REPLY, [b"x"])])
    play.receive("c")
    assert play.look() == [("c", b"x")]
    play.arrivals.end()
    play.growth.starts["c"].end()


def test_a_question_that_the_socket_cannot_hold_is_sent_in_pieces(play: Play) -> None:
    play.growth.asked = "/" * (1 << 20)
    play.find()
    start = play.growth.starts["c"]
    start.connection.channel = Channel(start.ours)
    play.receive("c")
    agent, messages = Channel(start.agent), list[tuple[int, list[bytes]]]()
    for _ in range(100):
        waiter.serve(play.arrivals.interests(0), due=0)
        messages += agent.receive() or []

    [(kind, [value])] = messages
    assert (kind, json.loads(value)) == (protocol.DESCRIBE_HOST, play.growth.asked)


def test_a_host_takes_its_place_when_the_supervisor_takes_it(play: Play) -> None:
    play.find()
    play.receive("c", (protocol.REPLY, [b"x"]))
    play.arrivals.end()

    assert play.look() == []
    assert play.growth.admitted == []
    assert play.growth.starts["c"].hung_up


def test_a_host_that_has_no_place_after_all_fails_as_one_that_refuses(
    play: Play,
) -> None:
    play.find()
    play.receive("c", (protocol.REPLY, [b"in vain"]))

    assert play.look() == []
    assert play.warnings == ["c has no room."]
    assert play.growth.losses == {"c": 1}
    play.arrivals.end()


def test_commands_of_hosts_that_do_not_join_may_end_by_themselves(play: Play) -> None:
    play.find()
    play.arrivals.end()

    starts = play.growth.starts.values()
    assert [start.hung_up for start in starts] == [[True], [True]]
    assert play.growth.searches[-1].has_ended
    assert play.arrivals.deadline(0) == 5.0
    play.arrivals.tick(4.0)
    assert not any(start.has_ended for start in starts)
    play.arrivals.tick(5.0)
    assert all(start.has_ended for start in starts)
    assert play.arrivals.deadline(0) == float("inf")


def test_nothing_is_left_of_hosts_that_join_when_the_job_is_over(play: Play) -> None:
    play.find()
    play.arrivals.end()
    play.arrivals.finish()

    assert all(start.has_ended for start in play.growth.starts.values())
    assert play.growth.searches[-1].is_finished


@pytest.mark.parametrize("ends_job", [False, True])
def test_an_srun_that_hangs_is_not_waited_for(
    play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, ends_job: bool
) -> None:
    monkeypatch.setattr(arrivals, "ANSWER_LIMIT_S", 0.0)
    script = tmp_path / "srun"
    script.write_text("#!/bin/sh\necho srun: retrying >&2\nexec sleep 605\n")
    script.chmod(0o700)
    srun = Srun(path=str(script), allocation=SlurmJob(job_id="7", nodes=()))
    start = AgentStart(HostSpec(name="b"), srun, {"PATH": os.defpath})
    play.growth.starts["b"] = start  # type: ignore[assignment]
    play.find()
    connection = start.connection
    assert connection is not None
    wait_for(lambda: "retrying" in connection.stderr_text, "srun")
    if ends_job:
        play.arrivals.end()
    else:
        play.arrivals.tick(float("inf"))
        assert play.look() == []
        assert "srun says: 'srun: retrying'" in play.warnings[0]

    assert processes.process(connection.pid) is not None
    # Its time has come.
    play.arrivals.tick(float("inf"))
    assert processes.process(connection.pid) is None


@pytest.mark.parametrize("exits", [True, False])
def test_the_end_of_a_command_whose_output_has_ended_is_not_waited_for(
    play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, exits: bool
) -> None:
    # So long that only its end, or the clock that the test gives, can end the wait.
    monkeypatch.setattr(agents, "EXIT_S", 1000.0)
    go_on = tmp_path / "go on"
    os.mkfifo(go_on)
    script = tmp_path / "reach"
    script.write_text(
        f"#!/bin/sh\necho no pod >&2\nexec <&- >&-\nread x <'{go_on}'\nexit 9\n"
    )
    script.chmod(0o700)
    command = find_command(str(script), {})
    start = AgentStart(HostSpec(name="b"), command, {"PATH": os.defpath})
    play.growth.starts["b"] = start  # type: ignore[assignment]
    play.find()
    assert start.connection is not None
    fileno, pid = start.connection.fileno(), start.connection.pid

    def take_in_end_of_output() -> bool:
        interests = play.arrivals.interests(0)
        if own := [each for each in interests if each.descriptor == fileno]:
            waiter.serve(own, 0.0)
        return start.is_closed

    wait_for(take_in_end_of_output, "the end of the output")
    # The loop would turn all the time otherwise.
    assert fileno not in [each.descriptor for each in play.arrivals.interests(0)]
    play.arrivals.tick(time.monotonic())
    assert play.look() == []
    assert play.warnings == []
    if exits:
        go_on.write_text("x\n")
        # As the supervisor does, which reaps all children of poprun.
        _, status = os.waitpid(pid, 0)
        play.arrivals.note_exits({pid: status})
        play.arrivals.tick(time.monotonic())
    else:
        play.arrivals.tick(start.deadline)
    assert play.look() == []
    why = "reach ended with exit code 9" if exits else "reach starts no agent on it"
    assert f"{why}. reach says: 'no pod'" in play.warnings[0]


def hosts_of(*names: str) -> list[Any]:
    """Return links to hosts with two instances each, the first of them poprun's own."""
    first, *others = (
        Mock(spec=LocalHost if i == 0 else RemoteHost, ranks=range(2 * i, 2 * i + 2))
        for i in range(len(names))
    )
    for host, name in zip((first, *others), names, strict=True):
        host.name = name
    return [first, *others]


def members(*hosts: str, least: int = 1) -> Membership:
    doubled = [host for host in hosts for _ in range(2)]
    return first_members(doubled, refusal="", least=least)


def test_hosts_that_are_named_no_longer_leave_as_far_as_they_can(play: Play) -> None:
    # The list has another name of poprun's own machine.
    hosts, present = hosts_of("own", "b", "c"), members("a", "b", "c", least=4)
    play.growth.searches[-1].missing = ["a", "b", "c"]

    assert list(play.arrivals.leaves(hosts, present)) == [
        HostLeaves(host="c", ranks=(4, 5), why="c is missing")
    ]
    present = replace(present, leaving={4: "", 5: ""})
    assert list(play.arrivals.leaves(hosts, present)) == []
    assert play.warnings == [
        "B is missing, but the job keeps its hosts: the others are fewer than "
        "--min-instances or --nnodes allow.",
        "A is missing, but poprun itself runs there: it stays until the next attempt.",
    ]


def test_a_host_that_joins_may_take_the_place_of_one_that_is_needed(
    play: Play,
) -> None:
    hosts, present = hosts_of("a", "b", "c"), members("a", "b", least=4)
    joins = HostJoins(host="c", ranks=(4, 5))
    play.find()
    play.growth.searches[-1].missing = ["b"]
    assert list(play.arrivals.leaves(hosts[:2], present)) == []
    for host in ("b", "c"):
        play.receive(host, (protocol.REPLY, [b"x"]))
        play.growth.starts[host].end()
    assert len(play.look()) == 2
    play.growth.searches[-1].missing = ["b"]
    # Its instances have not asked to join yet.
    present, _ = generations.decide(present, joins, 1)
    assert list(play.arrivals.leaves(hosts, present)) == []
    for rank in joins.ranks:
        ask = ReformAsked(rank=rank, generation=0, links_port=1, store_port=2)
        present, _ = generations.decide(present, ask, 2)
    [leaves] = play.arrivals.leaves(hosts, present)
    assert leaves.host == "b"

    # One that is named no longer itself takes no place.
    play.growth.searches[-1].missing = ["b", "c"]
    [leaves] = play.arrivals.leaves(hosts, present)
    assert leaves.host == "c"
    assert not play.warnings


def test_no_host_leaves_while_all_are_named(play: Play) -> None:
    assert list(play.arrivals.leaves(hosts_of("a", "b"), members("a", "b"))) == []
    play.growth.has_room = False
    play.arrivals.note_loss("b")
    assert list(play.arrivals.leaves(hosts_of("a", "b"), members("a", "b"))) == []
    assert not play.warnings


def test_nothing_is_looked_for_without_room(play: Play) -> None:
    play.growth.has_room = False
    play.arrivals.note_loss("b")

    assert play.look() == []
    assert len(play.growth.searches) == 1
