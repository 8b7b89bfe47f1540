import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from plans import FACTS, MPI, make_request, planned

from popdist import environment as env
from poprun.host_specs import HostSpec
from poprun.mpirun.no_mpi import LocalLauncher
from poprun.mpirun.values import Mpi
from poprun.plan.assignments import (
    target_options,
)
from poprun.plan.placement import Binding
from poprun.plan.topology import Topology
from poprun.plan.values import PartitionVariables, Plan
from poprun.vipu.client.server_address import ServerAddress
from poprun.vipu.launch.values import PartitionOptions

FOUR_BY_EIGHT = Topology(num_instances=4, num_replicas=8, ipus_per_replica=2)
P64 = PartitionVariables(
    options=PartitionOptions(server=ServerAddress("10.1.3.101"), timeout_s=120),
    name="p64",
)

HOSTS = [
    HostSpec(name="n1"),
    HostSpec(name="n2", user="alice"),
    HostSpec(name="n3", slots=4),
]


def plan(
    topology: Topology = FOUR_BY_EIGHT,
    partition: PartitionVariables | None = None,
    **fields: object,
) -> Plan:
    number = topology.num_hosts
    facts = [replace(FACTS, cwd=f"/home/n{index + 1}") for index in range(number)]
    return planned(make_request(topology, HOSTS[:number], facts, **fields), partition)


# What the user may set instead of poprun.
REPLACEABLE = {
    *("ROLE_NAME", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE"),
    *("OMP_NUM_THREADS", "PATH", "IPUOF_LOG_LEVEL", "POPLAR_TARGET_OPTIONS"),
    *("IPUOF_VIPU_API_HOST", "IPUOF_VIPU_API_PORT", "IPUOF_VIPU_API_TIMEOUT"),
}


def test_what_says_which_instance_this_is_cannot_be_set_by_the_user() -> None:
    two_hosts = Topology(num_instances=4, num_replicas=4, num_hosts=2)
    job_plan = plan(two_hosts, P64, threads=[1] * 4)

    variables = set(job_plan.assignments[0].variables)
    assert variables - REPLACEABLE <= {
        *env.TOPOLOGY_VARIABLES,
        *env.JOB_VARIABLES,
        *env.PLACE_VARIABLES,
    }


def in_order(variables: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in variables.items()]


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_an_offline_instance_has_these_variables_and_no_others(rank: int) -> None:
    job_plan = plan(
        threads=[1, 2, 1, 2],
        settings_variables={"MPI4PY_LIBMPI": "/opt/lib/libmpi.so.40"},
    )

    assert in_order(job_plan.assignments[rank].variables) == [
        f"RANK={rank}",
        "WORLD_SIZE=4",
        f"LOCAL_RANK={rank}",
        "LOCAL_WORLD_SIZE=4",
        "GROUP_RANK=0",
        "GROUP_WORLD_SIZE=1",
        "ROLE_NAME=default",
        f"ROLE_RANK={rank}",
        "ROLE_WORLD_SIZE=4",
        "TORCHELASTIC_RUN_ID=cafe",
        "TORCHELASTIC_RESTART_COUNT=0",
        "TORCHELASTIC_USE_AGENT_STORE=False",
        "MASTER_ADDR=127.0.0.1",
        "MASTER_PORT=4711",
        f"OMPI_COMM_WORLD_RANK={rank}",
        "OMPI_COMM_WORLD_SIZE=4",
        f"OMPI_COMM_WORLD_LOCAL_RANK={rank}",
        "OMPI_COMM_WORLD_LOCAL_SIZE=4",
        "MPI4PY_LIBMPI=/opt/lib/libmpi.so.40",
        f"OMP_NUM_THREADS={[1, 2, 1, 2][rank]}",
        "POPDIST_NUM_TOTAL_REPLICAS=8",
        "POPDIST_NUM_IPUS_PER_REPLICA=2",
        "POPDIST_NUM_LOCAL_REPLICAS=2",
        "POPDIST_UNIFORM_REPLICAS_PER_INSTANCE=1",
        f"POPDIST_REPLICA_INDEX_OFFSET={[0, 2, 4, 6][rank]}",
        f"POPDIST_LOCAL_INSTANCE_INDEX={rank}",
        "POPDIST_CONTRACT_VERSION=1",
        "POPDIST_JOB_ID=cafe",
        "POPDIST_OFFLINE_MODE=1",
        "POPDIST_RESTART_COUNT=0",
        "POPDIST_CONTROL=@poprun-babe/key",
        "POPDIST_ARENA=beef-0",
    ]


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_with_a_partition_mpirun_shows_this_in_the_order_of_the_original(
    rank: int,
) -> None:
    job_plan = plan(partition=P64, cache_path="/cache")

    # PopRun's first, up to the target options; then our own.
    assert in_order(job_plan.assignments[rank].printed) == [
        "POPDIST_NUM_TOTAL_REPLICAS=8",
        "POPDIST_NUM_IPUS_PER_REPLICA=2",
        "POPDIST_NUM_LOCAL_REPLICAS=2",
        "POPDIST_UNIFORM_REPLICAS_PER_INSTANCE=1",
        "POPDIST_EXECUTABLE_CACHE_PATH=/cache",
        f"POPDIST_REPLICA_INDEX_OFFSET={[0, 2, 4, 6][rank]}",
        f"POPDIST_LOCAL_INSTANCE_INDEX={rank}",
        "IPUOF_VIPU_API_HOST=10.1.3.101",
        "IPUOF_VIPU_API_PORT=8090",
        "IPUOF_VIPU_API_PARTITION_ID=p64",
        "IPUOF_VIPU_API_TIMEOUT=120",
        f"IPUOF_VIPU_API_GCD_ID={rank}",
        "IPUOF_LOG_LEVEL=WARN",
        'POPLAR_TARGET_OPTIONS={"ipuLinkDomainSize":"16","ipuLinkConfiguration":'
        '"default","ipuLinkTopology":"mesh","gatewayMode":"true","instanceSize":"4"}',
        "POPDIST_CONTRACT_VERSION=1",
        "POPDIST_JOB_ID=cafe",
        "POPDIST_OFFLINE_MODE=0",
        "POPDIST_RESTART_COUNT=0",
    ]


def test_every_instance_has_the_same_names() -> None:
    # Open MPI 5 gives the names of the first context to all others too.
    job_plan = plan(partition=P64, cache_path="/cache", threads=[1] * 4)

    assert len({tuple(a.printed) for a in job_plan.assignments}) == 1
    assert len({tuple(a.variables) for a in job_plan.assignments}) == 1


def test_mpirun_shows_nothing_that_an_instance_is_not_told() -> None:
    job_plan = plan(
        partition=P64,
        exports={"IPUOF_LOG_LEVEL": "DEBUG", "SECRET": "x"},
        instance_exports={1: {"TOKEN": "y"}},
    )

    for assignment in job_plan.assignments:
        assert assignment.printed.items() <= assignment.variables.items()
        secrets = {"SECRET", "TOKEN", "POPDIST_CONTROL", "POPDIST_ARENA"}
        assert secrets.isdisjoint(assignment.printed)


def test_on_several_hosts_local_numbers_begin_again_and_rank_0_is_the_master() -> None:
    job_plan = plan(
        Topology(num_instances=4, num_replicas=4, num_hosts=2),
        bindings=[Binding(cpus=(cpu,)) for cpu in (0, 1, 0, 2)],
        threads=[3, 5, 7, 9],
    )

    names = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "OMP_NUM_THREADS")
    assert [
        (a.host.name, a.binding.cpus, *(a.variables[name] for name in names))
        for a in job_plan.assignments
    ] == [
        ("n1", (0,), "0", "0", "2", "n1", "3"),
        ("n1", (1,), "1", "1", "2", "n1", "5"),
        ("n2", (0,), "2", "0", "2", "n1", "7"),
        ("n2", (2,), "3", "1", "2", "n1", "9"),
    ]
    # As torchrun's agents, of which there is one on each host.
    torchruns = ("GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE")
    assert [[a.variables[n] for n in torchruns] for a in job_plan.assignments] == [
        ["0", "2", "0", "4"],
        ["0", "2", "1", "4"],
        ["1", "2", "2", "4"],
        ["1", "2", "3", "4"],
    ]
    # Shared memory does not reach from host to host.
    assert [a.variables["POPDIST_ARENA"] for a in job_plan.assignments] == [
        *("beef-0", "beef-0", "beef-1", "beef-1")
    ]
    assert (job_plan.request.hosts, job_plan.topology.num_hosts) == (HOSTS[:2], 2)


TWO_HOSTS = Topology(num_instances=4, num_replicas=4, num_hosts=2)


def links_of(topology: Topology, mpi: Mpi, subnet: str, *addresses: str) -> set[str]:
    """Return the links of all instances; the first host has these addresses."""
    first, *_ = addresses or ("",)
    facts = replace(FACTS, address=first, addresses=addresses)
    number = topology.num_hosts
    request = make_request(
        topology, HOSTS[:number], [facts] * number, mpi=mpi, subnet=subnet
    )
    variables = [each.variables for each in planned(request).assignments]
    return {each["POPDIST_LINKS"] for each in variables if "POPDIST_LINKS" in each}


@pytest.mark.parametrize(
    ("subnet", "addresses", "place"),
    [
        ("", ["10.1.0.7"], "10.1.0.7"),
        ("10.1.0.0/16", ["10.1.0.7", "10.1.0.6"], "10.1.0.7"),
        ("10.2.0.0/16", ["10.1.0.7", "127.0.0.1", "10.2.0.7"], "10.2.0.7"),
        ("10.1.0.0/16", ["fd00::1", "10.1.0.7"], "10.1.0.7"),
        ("", ["fd00::1", "10.1.0.7"], "[fd00::1]"),
    ],
)
def test_without_mpi_hosts_are_linked_at_an_address_of_the_subnet(
    subnet: str, addresses: Sequence[str], place: str
) -> None:
    links = links_of(TWO_HOSTS, LocalLauncher(), subnet, *addresses)

    assert links == {f"tcp://{place}:4712/f00d"}


def test_nothing_is_linked_by_tcp_on_one_host_by_an_mpi_or_without_an_address() -> None:
    one_host = Topology(num_instances=4, num_replicas=4)

    assert links_of(one_host, LocalLauncher(), "", "10.1.0.7") == set()
    assert links_of(TWO_HOSTS, MPI, "", "10.1.0.7") == set()
    assert links_of(TWO_HOSTS, LocalLauncher(), "") == set()


def test_a_users_exports_reach_all_instances_and_single_ones_count_more() -> None:
    job_plan = plan(
        exports={"A": "all", "B": "", "IPUOF_LOG_LEVEL": "DEBUG"},
        instance_exports={2: {"A": "two", "C": "2"}},
    )

    assert [
        (a.variables["A"], a.variables["B"], a.variables.get("C"))
        for a in job_plan.assignments
    ] == [("all", "", None), ("all", "", None), ("two", "", "2"), ("all", "", None)]


def test_a_users_exports_count_more_than_all_that_is_not_the_contract() -> None:
    [assignment] = plan(
        Topology(),
        partition=P64,
        settings_variables={"MPI4PY_LIBMPI": "/opt/lib/libmpi.so.40"},
        threads=[8],
        exports={"IPUOF_LOG_LEVEL": "DEBUG", "OMP_NUM_THREADS": "3", "RANK": "7"},
        instance_exports={0: {"MPI4PY_LIBMPI": "/mine.so"}},
    ).assignments

    assert assignment.variables["OMP_NUM_THREADS"] == "3"
    assert assignment.variables["RANK"] == "7"
    assert assignment.variables["MPI4PY_LIBMPI"] == "/mine.so"
    # What mpirun is told is what the instance is told.
    assert assignment.variables["IPUOF_LOG_LEVEL"] == "DEBUG"
    assert assignment.printed["IPUOF_LOG_LEVEL"] == "DEBUG"


def test_variables_that_the_caller_has_set_are_not_set_again() -> None:
    [assignment] = plan(Topology()).assignments

    assert {"OMP_NUM_THREADS", "MPI4PY_LIBMPI"}.isdisjoint(assignment.variables)
    assert "POPDIST_EXECUTABLE_CACHE_PATH" not in assignment.variables


@pytest.mark.parametrize(
    ("topology", "domain", "instance"),
    [
        pytest.param(Topology(), "1", "1", id="one"),
        pytest.param(FOUR_BY_EIGHT, "16", "4", id="four-by-eight"),
        pytest.param(
            Topology(num_instances=2, num_replicas=128), "64", "64", id="beyond-a-rack"
        ),
        pytest.param(
            Topology(num_instances=2, num_replicas=8, num_ilds=2), "4", "4", id="ilds"
        ),
        pytest.param(
            Topology(num_instances=3, num_replicas=9), "16", "3", id="odd-numbers"
        ),
    ],
)
def test_target_options_follow_from_the_topology(
    topology: Topology, domain: str, instance: str
) -> None:
    assert list(target_options(topology, {}).items()) == [
        ("ipuLinkDomainSize", domain),
        # Only whole racks are tori.
        ("ipuLinkConfiguration", "slidingWindow" if domain == "64" else "default"),
        ("ipuLinkTopology", "torus" if domain == "64" else "mesh"),
        ("gatewayMode", "true"),
        ("instanceSize", instance),
    ]


def test_target_options_of_the_caller_count_more() -> None:
    given = {"ipuLinkTopology": "torus", "syncConfiguration": "ipuAndAll"}

    [assignment] = plan(Topology(), partition=P64, target_options=given).assignments

    assert json.loads(assignment.printed["POPLAR_TARGET_OPTIONS"]) == {
        "ipuLinkDomainSize": "1",
        "ipuLinkConfiguration": "default",
        "ipuLinkTopology": "torus",
        "gatewayMode": "true",
        "instanceSize": "1",
        "syncConfiguration": "ipuAndAll",
    }


@pytest.mark.parametrize("server", ["localhost", "127.0.0.1", "::1", "LOCALHOST"])
def test_no_instance_gets_an_address_that_means_its_own_machine(server: str) -> None:
    facts = [FACTS, replace(FACTS, environ={})]
    topology = Topology(num_instances=2, num_replicas=2, num_hosts=2)

    own, other = planned(
        make_request(topology, HOSTS[:2], facts),
        replace(P64, options=PartitionOptions(server=ServerAddress(server))),
    ).assignments

    assert own.variables["IPUOF_VIPU_API_HOST"] == server
    assert "IPUOF_VIPU_API_HOST" not in other.variables
    assert "IPUOF_VIPU_API_PORT" not in other.printed
    assert other.variables["IPUOF_VIPU_API_PARTITION_ID"] == "p64"


def test_every_instance_gets_the_address_of_a_server_that_all_can_reach() -> None:
    facts = [FACTS, replace(FACTS, environ={})]
    topology = Topology(num_instances=2, num_replicas=2, num_hosts=2)

    for each in planned(make_request(topology, HOSTS[:2], facts), P64).assignments:
        assert each.variables["IPUOF_VIPU_API_HOST"] == "10.1.3.101"
