import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popdist.environment import Instance
from poprun.errors import TopologyError
from poprun.plan.topology import Topology


def refusal(**counts: int) -> str:
    with pytest.raises(TopologyError) as refused:
        Topology(**counts)
    return str(refused.value)


def test_without_options_a_topology_has_one_of_everything() -> None:
    topology = Topology()

    assert repr(topology) == (
        "Topology(num_instances=1, num_replicas=1, ipus_per_replica=1, num_ilds=1, "
        "num_hosts=1)"
    )
    assert topology.instances() == [Instance()]


def test_replicas_ipus_and_instances_are_shared_out() -> None:
    topology = Topology(
        num_instances=12, num_replicas=24, ipus_per_replica=3, num_ilds=2, num_hosts=3
    )

    assert topology.local_replicas == 2
    assert topology.num_ipus == 72
    assert topology.ipus_per_instance == 6
    assert topology.instances_per_host == 4


def test_neighbours_are_on_the_same_host_and_in_the_same_ild() -> None:
    topology = Topology(num_instances=6, num_replicas=12, num_ilds=2, num_hosts=3)
    ranks = range(6)

    assert [topology.host_of(rank) for rank in ranks] == [0, 0, 1, 1, 2, 2]
    assert [topology.local_index(rank) for rank in ranks] == [0, 1, 0, 1, 0, 1]
    assert [topology.ild_of(rank) for rank in ranks] == [0, 0, 0, 1, 1, 1]


def test_replicas_are_numbered_in_rank_order() -> None:
    topology = Topology(num_instances=4, num_replicas=8)

    assert [topology.replicas_of(rank) for rank in range(4)] == [
        range(0, 2),
        range(2, 4),
        range(4, 6),
        range(6, 8),
    ]


def test_each_instance_is_described_as_it_will_see_itself() -> None:
    topology = Topology(
        num_instances=4, num_replicas=12, ipus_per_replica=2, num_hosts=2
    )

    assert [
        (i.replica_index_offset, i.local_instance_index) for i in topology.instances()
    ] == [(0, 0), (3, 1), (6, 0), (9, 1)]
    assert topology.instances()[3] == Instance(
        num_total_replicas=12,
        num_ipus_per_replica=2,
        num_local_replicas=3,
        replica_index_offset=9,
        local_instance_index=1,
    )


@pytest.mark.parametrize(
    ("replicas", "ipus", "instances", "ilds", "hosts"),
    [
        (2, 1, 2, 1, 1),
        (8, 2, 4, 1, 1),
        (16, 4, 1, 1, 1),
        (16, 4, 16, 1, 4),
        (64, 1, 32, 1, 4),
        (32, 4, 32, 2, 8),
        (16, 8, 2, 2, 2),
        (64, 2, 2, 2, 2),
        (256, 1, 128, 1, 16),
        (3, 1, 3, 1, 1),
        (8, 1, 2, 2, 1),
        (65536, 1, 65536, 65536, 65536),
        (1, 65536, 1, 1, 1),
    ],
)
def test_configurations_that_people_use_are_accepted(
    replicas: int, ipus: int, instances: int, ilds: int, hosts: int
) -> None:
    topology = Topology(
        num_instances=instances,
        num_replicas=replicas,
        ipus_per_replica=ipus,
        num_ilds=ilds,
        num_hosts=hosts,
    )

    assert len(topology.instances()) == instances


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        (
            {"num_replicas": 0},
            "The number of replicas is 0, but must be from 1 to 65536. "
            "Ask for 1 or more.",
        ),
        (
            {"num_instances": -1},
            "The number of instances is -1, but must be from 1 to 65536. "
            "Ask for 1 or more.",
        ),
        (
            {"ipus_per_replica": 0},
            "The number of IPUs per replica is 0, but must be from 1 to 65536. "
            "Ask for 1 or more.",
        ),
        (
            {"num_replicas": 10**9},
            "The number of replicas is 1000000000, but must be from 1 to 65536. "
            "Ask for 65536 or fewer.",
        ),
        (
            {"num_ilds": 0},
            "The number of ILDs is 0, but must be from 1 to 65536. Ask for 1 or more.",
        ),
        (
            {"num_hosts": 65537},
            "The number of hosts is 65537, but must be from 1 to 65536. "
            "Ask for 65536 or fewer.",
        ),
    ],
)
def test_a_number_out_of_bounds_is_refused_with_the_bounds(
    counts: dict[str, int], message: str
) -> None:
    assert refusal(**counts) == message


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        (
            {"num_replicas": 65536, "ipus_per_replica": 2},
            "65536 replicas of 2 IPUs each need 131072 IPUs, but a job has at most "
            "65536. Ask for 1 IPU per replica, or for 32768 replicas.",
        ),
        (
            {"num_replicas": 9, "num_instances": 3, "ipus_per_replica": 10000},
            "9 replicas of 10000 IPUs each need 90000 IPUs, but a job has at most "
            "65536. Ask for 7281 IPUs per replica, or for 6 replicas.",
        ),
        (
            {"num_replicas": 40000, "num_instances": 40000, "ipus_per_replica": 2},
            "40000 replicas of 2 IPUs each need 80000 IPUs, but a job has at most "
            "65536. Ask for 1 IPU per replica.",
        ),
    ],
)
def test_more_ipus_than_there_can_be_are_refused(
    counts: dict[str, int], message: str
) -> None:
    assert refusal(**counts) == message


@pytest.mark.parametrize(
    ("instances", "replicas", "advice"),
    [
        pytest.param(3, 8, "Ask for 6 or 9 replicas.", id="surplus"),
        pytest.param(4, 2, "Ask for 4 replicas.", id="fewer-replicas-than-instances"),
        pytest.param(65534, 65535, "Ask for 65534 replicas.", id="at-the-limit"),
    ],
)
def test_uneven_share_is_refused_with_the_nearest_that_fit(
    instances: int, replicas: int, advice: str
) -> None:
    assert refusal(num_instances=instances, num_replicas=replicas) == (
        f"{replicas} replicas cannot be shared equally among {instances} "
        f"instances. {advice}"
    )


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        pytest.param(
            {"num_instances": 3, "num_replicas": 6, "num_hosts": 2},
            "3 instances cannot be shared equally among 2 hosts. Ask for 2 or "
            "6 instances.",
            id="hosts",
        ),
        pytest.param(
            {"num_instances": 6, "num_replicas": 12, "num_ilds": 4},
            "6 instances cannot be shared equally among 4 ILDs. Ask for 4 or "
            "12 instances.",
            id="ilds",
        ),
        pytest.param(
            {"num_instances": 2, "num_replicas": 4, "num_ilds": 4},
            "2 instances cannot be shared equally among 4 ILDs. Ask for 4 instances.",
            id="more-ilds-than-instances",
        ),
        pytest.param(
            {"num_hosts": 2},
            "1 instance cannot be shared equally among 2 hosts. Ask for 1 "
            "host, or for 2 instances and 2 replicas.",
            id="the-replicas-do-not-suffice",
        ),
        pytest.param(
            {"num_instances": 3, "num_replicas": 3, "num_ilds": 2},
            "3 instances cannot be shared equally among 2 ILDs. Ask for 1 or 3 "
            "ILDs, or for 4 instances and 4 replicas.",
            id="the-replicas-cannot-be-shared-among-the-ilds",
        ),
        pytest.param(
            {"num_instances": 3, "num_replicas": 8, "num_hosts": 2},
            "8 replicas cannot be shared equally among 3 instances. Ask for 2 "
            "or 4 instances.",
            id="no-number-of-replicas-helps",
        ),
        pytest.param(
            {"num_instances": 3, "num_replicas": 7, "num_hosts": 2},
            "7 replicas cannot be shared equally among 3 instances. Ask for 4 "
            "instances and 8 replicas.",
            id="no-single-number-helps",
        ),
        pytest.param(
            {
                "num_instances": 3,
                "num_replicas": 7,
                "num_hosts": 65535,
                "num_ilds": 65536,
            },
            "7 replicas cannot be shared equally among 3 instances. Ask for 1 "
            "host, 1 ILD and 7 instances.",
            id="no-two-numbers-help",
        ),
    ],
)
def test_advice_fits_the_numbers_that_it_leaves_alone(
    counts: dict[str, int], message: str
) -> None:
    assert refusal(**counts) == message


LARGEST = {
    "num_instances": 12,
    "num_replicas": 24,
    "ipus_per_replica": 5,
    "num_ilds": 4,
    "num_hosts": 4,
}


def counts_from(smallest: int) -> st.SearchStrategy[dict[str, int]]:
    numbers = {name: st.integers(smallest, most) for name, most in LARGEST.items()}
    return st.fixed_dictionaries(numbers)


@given(counts_from(-1))
def test_exactly_what_the_rules_allow_is_accepted(counts: dict[str, int]) -> None:
    instances, replicas = counts["num_instances"], counts["num_replicas"]
    ilds, hosts = counts["num_ilds"], counts["num_hosts"]
    allowed = (
        all(count >= 1 for count in counts.values())
        and instances <= replicas
        and replicas % instances == 0
        and instances % hosts == 0
        and instances >= ilds
        and instances % ilds == 0
        and replicas % ilds == 0
    )

    try:
        Topology(**counts)
    except TopologyError as error:
        refused = str(error)
    else:
        refused = ""

    assert allowed == (not refused)
    assert allowed or re.fullmatch(r"[^.]*\d[^.]*\. Ask for [^.]*\d[^.]*\.", refused)


KEYS = {
    "replica": "num_replicas",
    "instance": "num_instances",
    "ILD": "num_ilds",
    "host": "num_hosts",
}


@given(counts_from(1))
def test_what_the_advice_says_is_accepted(counts: dict[str, int]) -> None:
    try:
        Topology(**counts)
    except TopologyError as error:
        advice = str(error).partition("Ask for ")[2].removesuffix(".")
    else:
        return

    ways = []
    for way in advice.split(", or for "):
        noun = way.split(" ")[-1].removesuffix("s")
        if numbers := re.fullmatch(r"(\d+) or (\d+) \w+", way):
            ways += [{KEYS[noun]: int(number)} for number in numbers.groups()]
        else:
            pairs = re.findall(r"(\d+) (replica|instance|ILD|host)s?", way)
            ways.append({KEYS[noun]: int(number) for number, noun in pairs})

    assert ways
    for way_out in ways:
        Topology(**{**counts, **way_out})


@given(
    st.integers(1, 6), st.integers(1, 6), st.integers(1, 4), st.sampled_from([1, 2, 3])
)
def test_every_replica_is_owned_by_exactly_one_instance(
    per_host: int, local: int, hosts: int, ipus: int
) -> None:
    topology = Topology(
        num_instances=per_host * hosts,
        num_replicas=per_host * hosts * local,
        ipus_per_replica=ipus,
        num_hosts=hosts,
    )

    owned = [replica for i in topology.instances() for replica in i.replicas]

    assert owned == list(range(per_host * hosts * local))
    for rank, instance in enumerate(topology.instances()):
        assert instance.index == rank
        assert instance.num_instances == topology.num_instances
        assert Instance.decode(instance.encode()) == instance
