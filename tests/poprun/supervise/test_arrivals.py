"""Hosts that are to join a running attempt; the search and the agents are played."""

import socket
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from poprun.errors import HostError, LaunchError
from poprun.host_specs import HostSpec
from poprun.supervise import arrivals
from poprun.supervise.arrivals import Arrivals, Handshake, Joined, Question
from poprun.wire import protocol
from poprun.wire.events import HostsAvailable

LINK: Any = object()
FOUND = HostsAvailable(
    hosts=("a", "b", "c"), new_hosts=("b", "c"), num_running=1, num_instances=3
)


class PlayedSearch:
    def __init__(self) -> None:
        self.found: HostsAvailable | None = None
        self.has_ended = False

    def begin(self) -> None: ...

    def take(self) -> HostsAvailable | None:
        found, self.found = self.found, None
        return found

    def end(self) -> None:
        self.has_ended = True


class PlayedStart:
    """The start of an agent, whose connection answers what the test says."""

    def __init__(self) -> None:
        self.connection: Any = None
        self.failure, self.again_at = "", 0.0
        self.on_end: Callable[[], None] = lambda: None
        self.has_ended = False
        self._ours, self._agent = socket.socketpair()
        self.asked: list[bytes] = []
        self.hung_up: list[bool] = []
        self.answers: list[list[tuple[int, list[bytes]]] | None] = []

    def begin(self) -> None:
        self.connection = SimpleNamespace(
            fileno=self._ours.fileno,
            has_answered=True,
            channel=SimpleNamespace(send=self.asked.append),
            hang_up=lambda: self.hung_up.append(True),
            receive=lambda: self.answers.pop(0),
            read_answer=self._read_answer,
        )

    def _read_answer(self, kind: int, fields: list[bytes], answer_type: Any) -> Any:
        if kind == protocol.REFUSAL:
            raise LaunchError("It refuses.")
        return fields[0]

    def receive(self) -> None: ...

    def give_up(self, limit_s: float) -> None:
        self.failure = f"It does not answer in {limit_s:.0f} s."

    def end(self) -> None:
        self.has_ended = True
        self.on_end()
        self._ours.close()
        self._agent.close()


class PlayedGrowth:
    """There is room for hosts; each is asked one question."""

    def __init__(self) -> None:
        self.searches: list[PlayedSearch] = []
        self.starts: dict[str, PlayedStart] = {}
        self.losses: Counter[str] = Counter()
        self.refused: set[str] = set()
        self.has_room = True
        self.admitted: list[str] = []

    def question(self, losses: Counter[str]) -> Any:
        self.losses = losses
        return "where?" if self.has_room else None

    def search(self, question: Any) -> Any:
        self.searches.append(PlayedSearch())
        return self.searches[-1]

    def connect(self, host: HostSpec) -> Any:
        if host.name in self.refused:
            raise HostError(f"{host.name} cannot be connected.")
        return self.starts.setdefault(host.name, PlayedStart())

    def handshake(self, host: HostSpec, connection: Any) -> Handshake:
        answer = yield Question(protocol.DESCRIBE_HOST, "/", None)

        def admit() -> Joined:
            self.admitted.append(host.name)
            if answer == b"in vain":
                raise HostError(f"{host.name} has no room.")
            return Joined(LINK, connection, ("a", host.name, answer))

        return admit


class Play:
    def __init__(self) -> None:
        self.growth, self.warnings = PlayedGrowth(), list[str]()
        played: Any = self.growth
        self.arrivals = Arrivals(played, self.warnings.append)
        assert self.look() == []

    def look(self) -> list[tuple[str, ...]]:
        return [joined.host_names for joined in self.arrivals.look()]

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


@pytest.fixture(autouse=True)
def no_interests_of_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlayedSearch, "interests", lambda self, now: (), raising=False)
    monkeypatch.setattr(PlayedSearch, "tick", lambda self, now: None, raising=False)


def test_hosts_join_when_they_have_answered_each_on_its_own() -> None:
    play = Play()
    play.find()
    play.receive("c", (protocol.ALIVE, []), (protocol.REPLY, [b"x"]))

    assert play.look() == [("a", "c", b"x")]
    # The members have changed: the next question is another one.
    assert play.growth.searches[0].has_ended
    play.receive("b", (protocol.REPLY, [b"y"]))
    assert play.look() == [("a", "b", b"y")]
    assert not play.warnings
    for start in play.growth.starts.values():
        start.end()


def test_a_host_that_fails_is_looked_for_again_and_counts_as_lost() -> None:
    play = Play()
    play.growth.refused = {"b"}
    play.find()
    play.receive("c", (protocol.REFUSAL, []))
    assert play.look() == []

    assert play.warnings == ["b cannot be connected.", "It refuses."]
    assert play.growth.losses == {"b": 1, "c": 1}
    assert play.growth.starts["c"].has_ended
    assert [search.has_ended for search in play.growth.searches] == [True, False]


def test_a_host_that_does_not_answer_in_time_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arrivals, "ANSWER_LIMIT_S", 0.0)
    play = Play()
    play.find()
    play.receive("c")
    play.arrivals.tick(float("inf"))
    assert play.look() == []

    assert play.warnings == [
        "It does not answer in 0 s.",
        "The host c cannot join: its agent does not answer within 0 s.",
    ]


def test_each_answer_of_a_host_has_its_own_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # poprun is stopped from the start of the agent until its hello has come.
    now = 0.0
    monkeypatch.setattr(arrivals, "time", SimpleNamespace(monotonic=lambda: now))
    play = Play()
    play.find()
    now = 100.0
    for host in ("b", "c"):
        play.receive(host)
    play.arrivals.tick(now)
    assert play.look() == []

    assert play.warnings == []
    play.growth.starts["c"].answers.append([(protocol.REPLY, [b"x"])])
    play.receive("c")
    assert play.look() == [("a", "c", b"x")]
    play.arrivals.end()
    play.growth.starts["c"].end()


def test_a_host_takes_its_place_when_the_supervisor_takes_it() -> None:
    play = Play()
    play.find()
    play.receive("c", (protocol.REPLY, [b"x"]))
    play.arrivals.end()

    assert play.look() == []
    assert play.growth.admitted == []
    assert play.growth.starts["c"].has_ended


def test_a_host_that_has_no_place_after_all_fails_as_one_that_refuses() -> None:
    play = Play()
    play.find()
    play.receive("c", (protocol.REPLY, [b"in vain"]))

    assert play.look() == []
    assert play.warnings == ["c has no room."]
    assert play.growth.losses == {"c": 1}
    play.arrivals.end()


def test_nothing_is_left_of_hosts_that_join_when_the_job_stops() -> None:
    play = Play()
    play.find()
    starts = play.growth.starts.values()
    hung_up: list[int] = []
    for start in starts:
        start.on_end = lambda: hung_up.append(sum(len(s.hung_up) for s in starts))
    play.arrivals.end()

    # The end of one waits for its command; that of the others ends meanwhile.
    assert hung_up == [2, 2]
    assert all(start.has_ended for start in play.growth.starts.values())
    assert play.growth.searches[-1].has_ended
    assert play.arrivals.deadline(0) == float("inf")


def test_nothing_is_looked_for_without_room() -> None:
    play = Play()
    play.growth.has_room = False
    play.arrivals.note_loss("b")

    assert play.look() == []
    assert len(play.growth.searches) == 1
