"""Hosts that join a running attempt; agents and plans are played."""

from collections import Counter
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from poprun.host_specs import parse_hosts
from poprun.run import growth
from poprun.run.growth import RunningGrowth
from poprun.supervise.arrivals import Question
from poprun.wire import protocol
from poprun.wire.events import HostLost

[A], [B], [C] = map(parse_hosts, "abc")


class Play:
    """A job on the hosts a and b, one instance on each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.context: Any = Mock(
            environ={"PATH": "/bin"}, synced={"a", "b"}, directory="/job"
        )
        self.growth = RunningGrowth(
            self._plan(A, B), Mock(), self.context, Mock(), Mock(), Mock()
        )
        # The place of each host that has got one.
        self.places: list[tuple[str, int]] = []
        monkeypatch.setattr(
            growth, "RemotePreflight", lambda connection, _: Mock(connection=connection)
        )
        monkeypatch.setattr(self.growth, "_plan_with", self._plan_with)
        monkeypatch.setattr(self.growth, "_link", Mock())

    def _plan(self, *hosts: Any) -> Any:
        program = SimpleNamespace(argv=("train",))
        assignments = [
            SimpleNamespace(host=host, exports={}, program=program, cwd="/")
            for host in hosts
        ]
        topology = SimpleNamespace(instances_per_host=1, host_of=lambda rank: rank)
        facts = [SimpleNamespace(is_own_host=host == A) for host in hosts]
        request = SimpleNamespace(hosts=hosts, facts=facts)
        return SimpleNamespace(
            assignments=assignments, topology=topology, request=request
        )

    def _plan_with(self, place: int, host: Any, *_: object) -> Any:
        self.places.append((host.name, place))
        hosts = [*self.growth.plan.request.hosts]
        hosts[place : place + 1] = [host]
        return self._plan(*hosts)

    def lose(self, rank: int, host: str) -> None:
        self.growth.listen(HostLost(host=host, ranks=(rank,), why="x"))

    def answer_all(self, host: Any) -> Any:
        """Answer the questions to a host; return the function that lets it join."""
        connection: Any = SimpleNamespace(hello=SimpleNamespace(address=""))
        handshake = self.growth.handshake(host, connection)
        asked = [next(handshake)]
        try:
            while True:
                asked.append(handshake.send(Mock()))
        except StopIteration as end:
            admit = end.value
        assert asked[0] == Question(protocol.DESCRIBE_HOST, "/job", growth.HostFacts)
        assert asked[-1] == Question(
            protocol.FIND_PROGRAM, [["train"], "/bin", "/"], growth.FilePath
        )
        return admit


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Play:
    return Play(monkeypatch)


def test_hosts_that_answer_at_once_get_different_places(play: Play) -> None:
    play.lose(1, "b")
    admissions = [play.answer_all(host) for host in (B, C)]
    assert play.places == []

    for admit in admissions:
        admit()

    assert play.places == [("b", 1), ("c", 2)]


def test_instances_on_popruns_own_machine_stay(play: Play) -> None:
    play.lose(1, "b")
    play.growth.question(Counter(b=1))

    ask = play.growth._hosts.question_while_running
    ask.assert_called_once_with([A], 1, {"b": 1}, ["a"])


def test_a_host_that_joins_has_the_folder_of_sync(play: Play) -> None:
    play.answer_all(C)()

    # A later copy would replace files that instances have written there.
    assert play.context.synced == {"a", "b", "c"}
