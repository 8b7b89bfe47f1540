"""The hosts of each attempt of an elastic job, with hosts that the test plays."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from poprun.errors import HostError, HostUnreachableError, OptionError
from poprun.host_specs import HostSpec, parse_hosts
from poprun.log import Log
from poprun.options import grammar
from poprun.options.settings import Settings, resolve_settings
from poprun.reach.discovery import name_hosts
from poprun.reach.host_search import SearchQuestion
from poprun.run.elastic_hosts import ElasticHosts
from poprun.wire.events import HostsAvailable
from poprun.wire.machine import machine_id

GUARD: Any = object()


class PlayedContext:
    """A run whose hosts the test says: `away` cannot be used."""

    def __init__(self, *words: str) -> None:
        self.settings = resolve_settings(grammar.parse([*words, "true"]).options, {})
        self.environ: dict[str, str] = {}
        self.said: list[str] = []
        self.log = Log(0, self.said.append)
        self.away: set[str] = set()
        self.discovered = self.mistake = ""
        # The hosts that were tried, and those that were kept.
        self.tried: list[str] = []
        self.synced = {"a", "b"}
        self.kept: list[str] = []
        self.hosts = SimpleNamespace(keep=self.keep, machines=lambda hosts: ["m"])

    def keep(self, hosts: Sequence[HostSpec]) -> None:
        self.kept = [host.name for host in hosts]

    def open_usable_hosts(
        self, hosts: Sequence[HostSpec], guard: object
    ) -> dict[HostSpec, str]:
        self.tried = [host.name for host in hosts]
        return {h: f"{h.name} is away." for h in hosts if h.name in self.away}

    def name_hosts(self, guard: object) -> Sequence[HostSpec] | None:
        if self.mistake:
            raise HostError(self.mistake)
        if self.discovered:
            return parse_hosts(self.discovered)
        return name_hosts(self.settings, self.environ)


class Play:
    def __init__(self, *words: str) -> None:
        self.context: Any = PlayedContext(*words)
        self.hosts = ElasticHosts(self.context, 1)

    def attempt(self, *lost: str, growth: HostsAvailable | None = None) -> Settings:
        return self.hosts.settings_of_attempt(GUARD, lost, growth)


def numbers(settings: Settings) -> tuple[str, int, int]:
    names = ("host", "num-instances", "num-replicas")
    host, instances, replicas = (settings[name] for name in names)
    return host, instances, replicas


FOUR = ("-n", "8", "--host", "a,b,c,d", "--min-instances", "4")


def test_a_job_with_all_of_its_hosts_is_the_one_that_was_asked_for() -> None:
    play = Play(*FOUR)

    assert numbers(play.attempt()) == ("a,b,c,d", 8, 8)
    assert play.context.kept == list("abcd")
    assert play.context.said == []


def test_a_lost_host_is_left_out_at_once_and_tried_again_later() -> None:
    play = Play(*FOUR)
    play.attempt()

    assert numbers(play.attempt("b")) == ("a,c,d", 6, 6)
    assert play.context.tried == list("acd")
    assert play.context.said == [
        "poprun: the job has 6 instances of at most 8 now, on a, c, d.\n"
    ]
    assert numbers(play.attempt()) == ("a,b,c,d", 8, 8)


def test_a_host_that_does_not_answer_is_left_out_and_named() -> None:
    play = Play(*FOUR)
    play.context.away = {"a"}

    assert numbers(play.attempt()) == ("b,c,d", 6, 6)
    assert play.context.said == [
        "poprun: warning: a is away.\n",
        "poprun: the job has 6 instances of at most 8 now, on b, c, d.\n",
    ]


def test_a_lost_host_is_tried_at_once_if_the_job_cannot_do_without() -> None:
    play = Play(*FOUR)
    play.attempt()

    assert numbers(play.attempt("a", "b", "c")) == ("a,b,c,d", 8, 8)


def test_a_job_that_may_not_shrink_further_is_not_started() -> None:
    play = Play(*FOUR)
    play.context.away = {"a", "b", "d"}

    with pytest.raises(HostUnreachableError) as refusal:
        play.attempt()
    assert str(refusal.value).splitlines() == [
        "The job needs 1 host and 4 instances at least, but with the hosts that can "
        "be used (c) it can have 2. Wait for more hosts, or allow fewer with "
        "--min-instances or --nnodes.",
        "a is away.",
        "b is away.",
        "d is away.",
    ]


def test_hosts_are_discovered_before_each_attempt() -> None:
    play = Play("-n", "4", "--host-discovery-script", "./hosts", "--min-instances", "1")
    play.context.discovered = "a:1"
    assert numbers(play.attempt()) == ("a:1", 1, 1)
    play.context.discovered = "a:1,b:2,c:2"

    assert numbers(play.attempt()) == ("b:2,c:2", 4, 4)
    # The job has no use for the third one.
    assert play.context.kept == ["b", "c"]


def test_hosts_that_cannot_be_read_again_are_those_named_before() -> None:
    play = Play("-n", "4", "--host-discovery-script", "./hosts", "--min-instances", "1")
    play.context.mistake = "The script prints no host."
    with pytest.raises(HostError):
        play.attempt()
    play.context.discovered, play.context.mistake = "a:1,b:1,c:1", ""
    play.attempt()
    play.context.mistake = "The script prints no host."

    assert numbers(play.attempt("b")) == ("a:1,c:1", 2, 2)
    assert play.context.said[-2:] == [
        "poprun: warning: The script prints no host. The attempt has the hosts known "
        "before.\n",
        "poprun: the job has 2 instances of at most 4 now, on a, c.\n",
    ]
    assert numbers(play.attempt()) == ("a:1,b:1,c:1", 3, 3)


@pytest.fixture
def squeue(tmp_path: Path) -> Path:
    """The file with what squeue prints; squeue fails without it."""
    script = tmp_path / "squeue"
    script.write_text(f"#!/bin/sh\n/bin/cat {tmp_path}/listing\n")
    script.chmod(0o755)
    return tmp_path / "listing"


def play_in_slurm(squeue: Path) -> Play:
    play = Play("-n", "4", "--min-instances", "2")
    play.context.environ = {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "n[1-2]",
        "PATH": str(squeue.parent),
    }
    return play


def test_the_nodes_that_a_slurm_job_has_now_are_its_hosts(squeue: Path) -> None:
    squeue.write_text("7 n[1-2]\n")
    play = play_in_slurm(squeue)
    assert numbers(play.attempt()) == ("n1,n2", 4, 4)
    squeue.write_text("7 n[2-3]\n")

    assert numbers(play.attempt("n1")) == ("n2,n3", 4, 4)


def test_without_an_answer_of_slurm_the_nodes_are_those_before(squeue: Path) -> None:
    play = play_in_slurm(squeue)
    assert numbers(play.attempt()) == ("n1,n2", 4, 4)
    squeue.write_text("7 n[2-3]\n")
    play.attempt()
    squeue.unlink()

    assert numbers(play.attempt()) == ("n2,n3", 4, 4)
    first, changed, second = play.context.said
    warning = "poprun: warning: squeue does not say which nodes Slurm's job 7 has now."
    assert first.startswith(warning)
    assert first == second
    assert changed == ("poprun: the job has 4 instances of at most 4 now, on n2, n3.\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--min-instances", "1"), "--min-instances is about a job on several hosts"),
        (
            ("--host-discovery-script", "./hosts", "--host", "a"),
            "exclude each other.* Leave --host and --hostfile out",
        ),
    ],
)
def test_the_hosts_are_named_in_one_way(words: Sequence[str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Play("-n", "2", *words).attempt()


def test_a_job_on_poprun_s_own_machine_has_one_host() -> None:
    with pytest.raises(OptionError, match="it can have only 1: localhost"):
        Play("-n", "4", "--mpirun", "local", "--nnodes", "1:4").attempt()


GROWING = (*FOUR, "--max-restarts", "3")


def test_a_job_without_all_of_its_instances_asks_for_more_hosts() -> None:
    play = Play(*GROWING)
    play.context.away = {"d"}
    play.attempt("b")
    question = play.hosts.question()

    assert question is not None
    assert [host.name for host in question.members.hosts] == ["a", "c"]
    assert question.losses == {"b": 1, "d": 1}
    decoded = SearchQuestion.decode(question.encode())
    assert decoded.losses == {"b": 1, "d": 1}
    assert [host.name for host in decoded.members.hosts] == ["a", "c"]


@pytest.mark.parametrize("words", [FOUR, GROWING])
def test_a_job_that_cannot_grow_asks_for_nothing(words: Sequence[str]) -> None:
    play = Play(*words)
    if words is FOUR:
        # Without --max-restarts it may not be able to go on.
        play.context.away = {"d"}
    play.attempt()

    assert play.hosts.question() is None


def test_a_job_grows_to_the_hosts_that_were_found_and_else_keeps_its_own() -> None:
    play = Play("-n", "4", "--host-discovery-script", "./hosts", "--min-instances", "1")
    play.context.discovered = "a:1"
    play.attempt()
    growth = HostsAvailable(
        hosts=("a:1", "b:1"), new_hosts=("b",), num_running=1, num_instances=2
    )
    # The script prints others meanwhile.
    play.context.discovered = "a:1,b:1,c:1"

    assert numbers(play.attempt(growth=growth)) == ("a:1,b:1", 2, 2)
    play.hosts.keep_members()
    assert numbers(play.attempt("b")) == ("a:1", 1, 1)
    assert numbers(play.attempt()) == ("a:1,b:1,c:1", 3, 3)


def test_a_host_that_does_not_answer_to_a_growth_is_lost_once() -> None:
    play = Play("-n", "3", "--host", "a,b,c", "--nnodes", "2:3", "--max-restarts", "3")
    play.context.away = {"c"}
    play.attempt()
    growth = HostsAvailable(
        hosts=("a", "b", "c"), new_hosts=("c",), num_running=2, num_instances=3
    )
    play.context.away = {"b", "c"}
    with pytest.raises(HostUnreachableError):
        play.attempt(growth=growth)
    play.hosts.keep_members()
    play.context.away = set()

    play.attempt("c")

    question = play.hosts.question()
    assert question is not None
    assert question.losses == {"b": 1, "c": 2}


def test_running_instances_ask_for_as_many_hosts_as_there_is_room_for() -> None:
    play = Play("-n", "6", "--host", "a,b,c", "--nnodes", "1:3", "--max-restarts", "3")
    play.context.away = {"c"}
    play.attempt()

    def question(hosts: str, **losses: int) -> SearchQuestion | None:
        present, number = parse_hosts(hosts), Counter(losses)
        return play.hosts.question_while_running(present, 2, number)

    asked = question("a", b=1)
    assert asked is not None
    assert (asked.bounds.share, asked.members.num_instances) == (2, 2)
    # c did not answer at the start.
    assert (asked.losses, asked.synced) == ({"b": 1, "c": 1}, ["a", "b"])
    # poprun's own machine must not be looked at.
    assert asked.machines == [machine_id(), "m"]
    assert question("a,b,c") is None
    assert SearchQuestion.decode(asked.encode()).synced == ["a", "b"]


@pytest.mark.parametrize("option", ["--host-discovery-script", "--hostfile"])
def test_a_whole_job_asks_whether_its_hosts_are_still_named(option: str) -> None:
    words = ("-n", "2", "--nnodes", "1:2", "--max-restarts", "3")
    play = Play(*words, option, "hosts")
    play.context.discovered = "a:1,b:1"
    play.attempt()

    assert play.hosts.question() is not None
    present = parse_hosts("a:1,b:1")
    assert play.hosts.question_while_running(present, 1, Counter()) is not None


def test_no_host_joins_without_max_restarts() -> None:
    play = Play("-n", "2", "--host", "a,b", "--nnodes", "1:2")
    play.attempt()

    assert play.hosts.question_while_running(parse_hosts("a"), 1, Counter()) is None
