"""The numbers of instances and replicas where the user writes none, or auto."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from plans import FACTS

from poprun.errors import TopologyError
from poprun.host_specs import HostSpec, parse_hosts
from poprun.options import grammar
from poprun.options.programs import Program
from poprun.options.settings import Settings, resolve_settings
from poprun.plan.host_facts import HostFacts, Machine, Node
from poprun.plan.instance_count import settle_auto, with_tasks_of_slurm
from poprun.plan.request import read_request
from poprun.plan.values import Request

TWO_NODES = {"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "n[1-2]"}
FOUR_TASKS = {**TWO_NODES, "SLURM_NTASKS": "4", "SLURM_TASKS_PER_NODE": "2(x2)"}


def settings(*words: str, environ: Mapping[str, str] = {}) -> Settings:
    return resolve_settings(grammar.parse([*words, "x"]).options, environ)


def with_cpus(count: int, quota: float | None = None) -> HostFacts:
    machine = Machine(nodes=(Node(index=0, cpus=tuple(range(count))),))
    return replace(FACTS, machine=machine, cpu_quota=quota)


def no_facts(hosts: Sequence[HostSpec]) -> Sequence[HostFacts]:
    raise AssertionError(f"{hosts} are looked at.")


def counts(given: Settings) -> tuple[int, int]:
    return given["num-instances"], given["num-replicas"]


def settled(
    words: str, hosts: str = "localhost", facts: Sequence[HostFacts] = ()
) -> tuple[tuple[int, int], list[str]]:
    describe = (lambda hosts: facts) if facts else no_facts
    given, notes = settle_auto(settings(*words.split()), parse_hosts(hosts), describe)
    return counts(given), notes


@pytest.mark.parametrize(
    ("facts", "number"),
    [
        pytest.param(with_cpus(6), 6, id="mask"),
        pytest.param(with_cpus(6, quota=2.5), 2, id="quota"),
        pytest.param(with_cpus(6, quota=0.5), 1, id="less-than-one"),
        pytest.param(with_cpus(6, quota=64.0), 6, id="large-quota"),
    ],
)
def test_auto_is_an_instance_for_each_cpu_that_may_be_used(
    facts: HostFacts, number: int
) -> None:
    assert settled("-n auto", facts=[facts]) == ((number, number), [])


@pytest.mark.parametrize("option", ["-n auto", "--np=AUTO", "--num-processes Auto"])
def test_auto_of_hosts_with_slots_is_their_sum(option: str) -> None:
    assert settled(option, "a:3,b:3") == ((6, 6), [])


def test_hosts_without_slots_have_their_cpus() -> None:
    facts = [with_cpus(3), with_cpus(64)]

    assert settled("-n auto", "a,b:3", facts) == ((6, 6), [])


def test_hosts_of_different_sizes_get_as_many_as_the_smallest() -> None:
    assert settled("-n auto", "a:4,b:2,c:3") == (
        (6, 6),
        [
            "auto starts 2 instances on each of the 3 hosts, as many as fit on b: all "
            "hosts get the same number."
        ],
    )


def test_replicas_are_given_or_as_many_as_instances() -> None:
    facts = [with_cpus(2)]

    assert settled("-n auto --num-replicas 8", facts=facts)[0] == (2, 8)
    auto = "--num-instances auto --num-replicas auto"
    assert settled(auto, facts=facts)[0] == (2, 2)
    assert settled("--num-instances 3 --num-replicas auto")[0] == (3, 3)
    assert settled("--num-instances 3")[0] == (3, 1)


def test_a_dry_run_says_whose_cpus_it_counts() -> None:
    facts = [with_cpus(2), with_cpus(2)]
    words = "-n auto --host a,b --dry-run"

    assert settled(words, "a,b", facts) == (
        (4, 4),
        [
            "A dry run connects to no other host: for each host without slots, "
            "auto counts the CPUs of this one."
        ],
    )
    assert settled("-n auto --dry-run", facts=facts[:1])[1] == []
    assert settled(words, "a:1,b:1")[1] == []


def request(*words: str, environ: Mapping[str, str] = {}) -> Request:
    given = settings("--mpirun", "local", *words)
    facts = with_cpus(3)
    programs = [Program(argv=["x"], instances=range(0))]
    return read_request(
        given, programs, environ, "/tmp", lambda hosts: [facts for _ in hosts]
    )


def test_a_request_has_the_number_that_auto_stands_for() -> None:
    topology = request("-n", "auto", "--host", "a,b").topology

    assert (topology.num_instances, topology.num_replicas) == (6, 6)
    assert (topology.num_hosts, topology.instances_per_host) == (2, 3)


def test_auto_takes_all_nodes_of_a_slurm_job() -> None:
    assert request("-n", "auto", environ=TWO_NODES).topology.num_instances == 6
    assert request("-n", "auto", environ=FOUR_TASKS).topology.num_instances == 4


@pytest.mark.parametrize(
    ("words", "note"),
    [
        (
            ["--num-instances", "auto", "--num-replicas", "8"],
            "--num-instances auto is 3 here. Write a number instead.",
        ),
        (
            ["--num-instances", "auto"],
            "Without --num-replicas a job has 1 replica. For one replica in "
            "each instance add --num-replicas auto, or write -n auto instead of "
            "--num-instances auto.",
        ),
    ],
)
def test_a_number_that_does_not_divide_is_named(words: list[str], note: str) -> None:
    with pytest.raises(TopologyError) as refusal:
        request(*words)

    assert refusal.value.__notes__ == [note]


def test_a_slurm_job_has_an_instance_for_each_task() -> None:
    given = with_tasks_of_slurm(settings(), FOUR_TASKS)

    assert counts(given) == (4, 4)
    assert given.origin("num-instances") == "SLURM_TASKS_PER_NODE"
    assert given.offline


def test_without_tasks_it_has_one_on_each_node() -> None:
    given = with_tasks_of_slurm(settings(), TWO_NODES)

    assert counts(given) == (2, 2)
    assert given.origin("num-instances") == "SLURM_JOB_NODELIST"


def test_replicas_that_are_given_are_divided_among_the_tasks() -> None:
    given = with_tasks_of_slurm(settings("--num-replicas", "8"), FOUR_TASKS)

    assert counts(given) == (4, 8)
    assert not given.offline


def test_replicas_that_the_tasks_cannot_share_are_refused_with_the_way_out() -> None:
    given = with_tasks_of_slurm(settings("--num-replicas", "7"), FOUR_TASKS)

    with pytest.raises(TopologyError) as refusal:
        read_request(
            given,
            [Program(argv=["x"], instances=range(0))],
            FOUR_TASKS,
            "/tmp",
            no_facts,
        )

    assert refusal.value.__notes__ == [
        "The instances are the tasks of the Slurm job. For another number write "
        "--num-instances N."
    ]


@pytest.mark.parametrize(
    ("words", "environ"),
    [
        pytest.param(["-n", "1"], FOUR_TASKS, id="number-given"),
        pytest.param(["--num-instances=1"], FOUR_TASKS, id="PopRun's-option"),
        pytest.param(["--host", "a"], FOUR_TASKS, id="host-given"),
        pytest.param([], {**FOUR_TASKS, "SLURM_STEP_ID": "0"}, id="step"),
        pytest.param([], {**FOUR_TASKS, "POPDIST_JOB_ID": "a"}, id="instance"),
        pytest.param([], {**TWO_NODES, "SLURM_JOB_NODELIST": "n1"}, id="one-task"),
        pytest.param([], {**TWO_NODES, "SLURM_JOB_NODELIST": "[x"}, id="wrong-list"),
        pytest.param([], {}, id="no-slurm"),
    ],
)
def test_otherwise_settings_stay_as_they_are(
    words: list[str], environ: dict[str, str]
) -> None:
    given = settings(*words)

    assert with_tasks_of_slurm(given, environ) is given
