"""Which hosts an attempt of an elastic job has, and how many instances."""

from dataclasses import replace

import pytest

from poprun.errors import OptionError, PoprunError
from poprun.host_specs import parse_hosts
from poprun.options import grammar
from poprun.options.settings import Settings, resolve_settings
from poprun.plan.elastic import (
    Bounds,
    Members,
    check_is_possible,
    choose_members,
    find_growth,
    is_elastic,
    read_bounds,
    settings_with,
)


def settings(*words: str) -> Settings:
    return resolve_settings(grammar.parse([*words, "true"]).options, {})


def bounds(*words: str, num_hosts: int = 4) -> Bounds:
    return read_bounds(settings(*words), 1, num_hosts)


def chosen(hosts: str, limits: Bounds) -> tuple[list[str], int]:
    members = choose_members(parse_hosts(hosts) if hosts else (), limits)
    return [host.name for host in members.hosts], members.num_instances


@pytest.mark.parametrize(
    ("hosts", "names", "number"),
    [
        ("a,b,c,d", "abcd", 8),
        ("a,b,d", "abd", 6),
        ("c", "c", 2),
        # More hosts do not make the job larger than --num-instances.
        ("a,b,c,d,e", "abcd", 8),
        # The most instances, and not the most hosts.
        ("a:4,b:1,c:4", "ac", 8),
        ("a:3,b:1,c:1", "abc", 3),
        # Of equal ones, the division with the most hosts.
        ("a:4,b:4,c:2,d:2", "abcd", 8),
        ("a:9", "a", 8),
    ],
)
def test_each_host_gets_as_many_instances_as_another(
    hosts: str, names: str, number: int
) -> None:
    limits = bounds("-n", "8", "--min-instances", "2")

    assert chosen(hosts, limits) == (list(names), number)


def test_a_job_without_hosts_has_no_instances() -> None:
    assert chosen("", bounds("-n", "8", "--min-instances", "2")) == ([], 0)


def test_nnodes_gives_the_instances_of_each_host_and_keeps_others_in_reserve() -> None:
    limits = bounds("-n", "8", "--nnodes", "2:4", num_hosts=6)

    assert chosen("a,b,c,d,e,f", limits) == (list("abcd"), 8)
    assert chosen("b,e,f", limits) == (list("bef"), 6)
    # One host is too few, whatever its slots are, and two with one slot are enough.
    assert chosen("a:8", limits) == ([], 0)
    assert chosen("a:8,b:1", limits) == (list("ab"), 2)
    assert chosen("a:8,b:2", limits) == (list("ab"), 4)


def test_one_number_of_nodes_is_both_the_smallest_and_the_largest() -> None:
    limits = bounds("-n", "6", "--nnodes", "3")

    assert chosen("a,b", limits) == ([], 0)
    assert chosen("a,b,c,d", limits) == (list("abc"), 6)


def test_each_instance_keeps_its_replicas() -> None:
    limits = bounds(
        *("--num-instances", "4", "--num-replicas", "8", "--min-instances", "1")
    )

    assert [limits.replicas_of(n) for n in (4, 3, 1)] == [8, 6, 2]


@pytest.mark.parametrize(
    ("hosts", "names", "number"),
    # 12 replicas can be shared among 6, 4, 3, 2 and 1, but not among 5 instances.
    [("a,b,c,d,e,f", "abcdef", 6), ("a,b,c,d,e", "abcd", 4), ("a,b", "ab", 2)],
)
def test_a_number_of_replicas_that_stays_is_shared_equally(
    hosts: str, names: str, number: int
) -> None:
    words = ("--num-instances", "6", "--num-replicas", "12", "--fixed-replicas")
    limits = bounds(*words, "--min-instances", "1", num_hosts=6)

    assert chosen(hosts, limits) == (list(names), number)
    assert limits.replicas_of(number) == 12


def test_instances_are_shared_among_ilds() -> None:
    words = ("--num-instances", "4", "--num-replicas", "4", "--num-ilds", "2")
    limits = bounds(*words, "--min-instances", "1")

    assert chosen("a,b,c", limits) == (["a", "b"], 2)
    assert chosen("a", limits) == ([], 0)


def test_the_settings_are_those_of_a_job_with_these_hosts() -> None:
    given = settings("-n", "8", "--hostfile", "/nowhere", "--min-instances", "2")
    limits = read_bounds(given, 1, 4)
    members = Members(hosts=parse_hosts("alice@a:2,[fd00::1]"), num_instances=4)
    changed = settings_with(given, members, limits)

    names = ("host", "hostfile", "num-instances", "num-replicas", "min-instances")
    assert [changed[name] for name in names] == ["alice@a:2,[fd00::1]", None, 4, 4, 2]
    assert changed.offline


@pytest.mark.parametrize(
    "words",
    [
        ("--min-instances", "2"),
        ("--nnodes", "1:4"),
        ("--host-discovery-script", "./hosts"),
    ],
)
def test_each_of_three_options_makes_a_job_elastic(words: tuple[str, ...]) -> None:
    assert is_elastic(settings("-n", "8", *words))
    assert not is_elastic(settings("-n", "8"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("-n", "2", "--min-instances", "3"),
            "--min-instances is 3, but .* Give at most 2",
        ),
        (("-n", "6", "--nnodes", "1:4"), "among the 4 hosts .* Ask for 4 or 8"),
        (("-n", "2", "--nnodes", "1:4"), "Ask for 4 with --num-instances"),
        (("-n", "auto", "--nnodes", "1:4"), "is auto, .* Write a number"),
        (("-n", "4", "--nnodes", "4:1"), "must be MIN:MAX"),
        (("-n", "4", "--nnodes", "0:1"), "must be MIN:MAX"),
        (("-n", "4", "--nnodes", "1", "--min-instances", "1"), "exclude each other"),
        (
            ("-n", "4", "--nnodes", "1:4", "--only-output-from-instance", "0,2"),
            "instance names 2, but the job has only 1 instance. .* become that small",
        ),
        (("-n", "4", "--nnodes", "2:4", "--stdin", "2"), "--stdin names 2, but"),
        (("-n", "4", "--min-instances", "2", "--pdb", "3"), "--pdb names 3, but"),
        (
            ("--num-instances", "3", "--num-replicas", "4", "--nnodes", "3"),
            "4 replicas cannot be shared equally among 3 instances",
        ),
    ],
)
def test_contradictions_are_explained(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(PoprunError, match=message):
        bounds(*words)


@pytest.mark.parametrize(("hosts", "most"), [("a,b,c", 3), ("a:1,b:1,c:2", 3)])
def test_hosts_that_can_never_take_the_whole_job_are_refused(
    hosts: str, most: int
) -> None:
    named = parse_hosts(hosts)
    limits = bounds("-n", "4", "--min-instances", "1", num_hosts=len(named))

    with pytest.raises(OptionError, match=f"the 3 hosts of --host take {most}:"):
        check_is_possible(named, limits)
    check_is_possible(parse_hosts("a,b:2"), bounds("-n", "4", "--nnodes", "1:2"))


def test_a_list_of_hosts_has_the_most_that_nnodes_allows() -> None:
    with pytest.raises(OptionError) as refusal:
        check_is_possible(parse_hosts("a,b"), bounds("-n", "8", "--nnodes", "2:4"))

    assert str(refusal.value) == (
        "The job has all of its instances on 4 hosts, the most that --nnodes allows, "
        "but it can have only 2: a, b. Name 4 with --host, or allow at most 2 with "
        "--nnodes."
    )


def test_a_host_takes_the_place_of_another_where_too_few_would_be_left() -> None:
    hosts = parse_hosts("a,b")
    members = Members(hosts=hosts, num_instances=2)
    for share in 0, 1:
        two = replace(bounds("-n", "2", "--nnodes", "2"), share=share)

        # One of them stays.
        larger = find_growth(parse_hosts("c"), members, two, ["a", "b"])
        assert larger == Members(hosts=[*parse_hosts("c")], num_instances=1)

    # poprun's own host stays, although it is named no longer.
    larger = find_growth(parse_hosts("c"), members, two, ["b"])
    assert larger == Members(hosts=[*parse_hosts("a,c")], num_instances=2)


def test_a_job_of_several_programs_has_fixed_numbers() -> None:
    with pytest.raises(PoprunError, match="has 2 programs"):
        read_bounds(settings("-n", "4", "--nnodes", "2"), 2, 2)


@pytest.mark.parametrize(
    ("usable", "larger"),
    [
        ("a,b", None),
        ("a,b,c", ("abc", 6)),
        # More than --num-instances are of no use.
        ("a,b,c,d,e", ("abcd", 8)),
        # A host that the job has now may not be named any more.
        ("b,c,d", ("bcd", 6)),
        ("a:4,b:4", ("ab", 8)),
        ("b,c", None),
        ("", None),
    ],
)
def test_a_job_grows_if_it_has_more_instances_on_the_hosts_that_can_be_used(
    usable: str, larger: tuple[str, int] | None
) -> None:
    limits = bounds("-n", "8", "--min-instances", "2")
    now = Members(hosts=parse_hosts("a,b"), num_instances=4)

    found = find_growth(parse_hosts(usable) if usable else (), now, limits)

    expected = larger and (list(larger[0]), larger[1])
    assert (found and ([h.name for h in found.hosts], found.num_instances)) == expected


@pytest.mark.parametrize(
    ("usable", "larger"),
    [
        ("a,b", ""),
        ("c,a,b", "abc"),
        # The instances of a go on, so there is room for one host.
        ("b,c,d", "abc"),
        ("c:1,d:3", "abd"),
        # The hosts that there are keep their number.
        ("a:4,b:4", ""),
    ],
)
def test_hosts_that_join_running_instances_get_the_number_of_the_others(
    usable: str, larger: str
) -> None:
    limits = bounds("-n", "6", "--min-instances", "2", num_hosts=3)
    limits = replace(limits, share=2)
    now = Members(hosts=parse_hosts("a,b"), num_instances=4)

    found = find_growth(parse_hosts(usable), now, limits)
    names = [host.name for host in found.hosts] if found else []

    assert "".join(names) == larger
