"""Which hosts the search looks at, and when; the hosts are played."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from poprun.errors import HostError
from poprun.host_specs import HostSpec, parse_hosts
from poprun.plan.elastic import Bounds, Members
from poprun.reach import host_search
from poprun.reach.host_search import Search, SearchQuestion

BOUNDS = Bounds(least_instances=1, most_instances=4, slots=1, local_replicas=1)


def question(**fields: Any) -> SearchQuestion:
    members = Members(hosts=parse_hosts("a"), num_instances=1)
    value = {"members": members, "bounds": BOUNDS, "losses": {}, "settings": {}}
    return SearchQuestion(**{**value, **fields})


class Play:
    """A search on a clock that begins at 0."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **fields: Any) -> None:
        monkeypatch.setattr(host_search.time, "monotonic", lambda: 0.0)
        self.named = "a,b"
        self.away: set[str] = set()
        self.probed: list[str] = []
        self.reports: list[str] = []
        self.search = Search(
            question(**fields),
            lambda: parse_hosts(self.named),
            self.probe,
            self.reports.append,
        )

    def probe(self, hosts: Sequence[HostSpec]) -> dict[HostSpec, str]:
        self.probed = [host.name for host in hosts]
        return {host: "It is away." for host in hosts if host.name in self.away}

    def look(self, now: float) -> str:
        """Return the hosts that are found, after " <- " and those that are probed."""
        self.probed = []
        found = ",".join(map(str, self.search.look(now)))
        return f"{found} <- {','.join(self.probed)}"


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Play:
    return Play(monkeypatch)


def test_a_question_is_read_as_it_was_written() -> None:
    asked = question(
        members=Members(hosts=parse_hosts("u@a:2,[::1]"), num_instances=2),
        losses={"b": 2},
        settings={"ssh": "ssh -p 7"},
        checks=[[1, "x"]],
        machines=["m"],
        staying=["a"],
    )

    assert SearchQuestion.decode(asked.encode()) == asked


def test_a_host_that_answers_is_found_with_those_that_the_job_has(play: Play) -> None:
    play.named = "b:1,a:1"

    assert play.look(10) == "b:1,a:1 <- b"


def test_hosts_with_which_the_job_has_no_more_instances_are_not_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    members = Members(hosts=parse_hosts("a,b,c,d"), num_instances=4)
    play = Play(monkeypatch, members=members)
    play.named = "a,b,c,d,e,f"
    assert play.look(10) == " <- "

    # The job has lost none of its hosts, even if one is not named any more.
    play.named = "a,b,e,f"
    assert play.look(20) == " <- "


def test_a_host_is_missing_when_two_looks_in_succession_do_not_name_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    members = Members(hosts=parse_hosts("a,b,c"), num_instances=3)
    play = Play(monkeypatch, members=members)
    missing = []
    for named in ("a,b,c", "a", "a,c", "a,c", "a,b", "", "a,b", "a,b", "a,b,c"):
        play.named = named
        with suppress(HostError):
            play.look(10)
        missing.append(",".join(sorted(play.search.missing)))

    # The empty answer cannot be read: it neither counts nor leaves things as they are.
    assert missing == ["", "", "b", "b", "", "", "", "c", ""]


@pytest.mark.parametrize("share", [0, 1])
@pytest.mark.parametrize(("staying", "found"), [((), "a,c <- c"), (("b",), " <- ")])
def test_others_are_looked_at_in_place_of_hosts_that_are_missing(
    monkeypatch: pytest.MonkeyPatch, share: int, staying: Sequence[str], found: str
) -> None:
    members = Members(hosts=parse_hosts("a,b"), num_instances=2)
    bounds = replace(BOUNDS, most_instances=2, share=share)
    play = Play(monkeypatch, members=members, bounds=bounds, staying=staying)
    play.named = "a,c,d"

    assert play.look(10) == " <- "
    assert play.look(20) == found


def test_a_host_may_have_more_slots_than_before(play: Play) -> None:
    play.named = "a:2"

    assert play.look(10) == "a:2 <- "


def test_pauses_double_while_a_host_does_not_answer(play: Play) -> None:
    play.away = {"b"}
    looks = [now for now in range(10, 2700, 10) if play.look(now) == " <- b"]

    assert looks == [10, 30, 70, 150, 310, 630, 1270, 1910, 2550]
    assert play.reports == ["It is away."] * len(looks)


def test_another_host_is_looked_at_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    bounds = Bounds(least_instances=1, most_instances=2, slots=1, local_replicas=1)
    play = Play(monkeypatch, bounds=bounds)
    play.named, play.away = "a,b,c", {"b"}

    assert play.look(10) == " <- b"
    assert play.look(20) == "a,c <- c"


def test_a_host_that_was_lost_is_left_alone_for_longer_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    play = Play(monkeypatch, losses={"b": 2})

    assert [play.look(now) for now in (10, 30, 40)] == [" <- ", " <- ", "a,b <- b"]


def test_hosts_that_are_of_use_only_together_are_looked_at_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The replicas divide among 1, 3 or 9 instances.
    bounds = Bounds(
        least_instances=1,
        most_instances=9,
        slots=1,
        local_replicas=1,
        num_replicas=9,
    )
    play = Play(monkeypatch, bounds=bounds, losses={"b": 1})
    play.named = "a,b,c"

    assert play.look(10) == " <- "
    assert play.look(20) == "a,b,c <- b,c"
