"""The variables of an elastic job's members after others were lost."""

from plans import FACTS, FIRST, make_request

from poprun.host_specs import HostSpec
from poprun.mpirun.no_mpi import LocalLauncher
from poprun.plan.assignments import generation_variables, make_plan
from poprun.plan.host_facts import HostFacts
from poprun.plan.topology import Topology
from poprun.plan.values import Plan, new_generation

HOSTS = tuple(HostSpec(name=name) for name in ("a", "b", "c"))
# With an address for the others.
NAMED = [
    HostFacts(
        machine=FACTS.machine,
        free_port=1,
        links_port=2,
        cwd="/",
        address=f"10.0.0.{number}",
    )
    for number in (1, 2, 3)
]
NEXT = new_generation(FIRST, 5001, 5002)


def plan(**fields: object) -> Plan:
    """Return a plan of six instances on three hosts, with two replicas each."""
    topology = Topology(num_instances=6, num_replicas=12, num_hosts=3)
    request = make_request(
        topology,
        HOSTS,
        NAMED,
        mpi=LocalLauncher(),
        **fields,  # type: ignore[arg-type]
    )
    return make_plan(request, FIRST, None)


def test_ranks_and_replicas_are_numbered_anew_without_gaps() -> None:
    variables = generation_variables(plan(), (0, 3, 4, 5), NEXT)

    names = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")
    names += ("POPDIST_REPLICA_INDEX_OFFSET", "POPDIST_LOCAL_INSTANCE_INDEX")
    assert [[own[name] for name in names] for own in variables] == [
        ["0", "0", "1", "0", "0", "0"],
        ["1", "0", "1", "1", "2", "0"],
        ["2", "0", "2", "2", "4", "0"],
        ["3", "1", "2", "2", "6", "1"],
    ]
    common = {
        "WORLD_SIZE": "4",
        "OMPI_COMM_WORLD_SIZE": "4",
        "GROUP_WORLD_SIZE": "3",
        "POPDIST_NUM_TOTAL_REPLICAS": "8",
        "POPDIST_NUM_LOCAL_REPLICAS": "2",
        "POPDIST_INSTANCES_PER_HOST": "1,1,2",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "5002",
        "POPDIST_LINKS": f"tcp://10.0.0.1:5001/{NEXT.links_key}",
        "POPDIST_ELASTIC_JOINS": None,
    }
    assert all(common.items() <= own.items() for own in variables)


def test_the_secrets_are_not_those_of_the_members_before() -> None:
    [own, *_] = generation_variables(plan(), (0, 1), NEXT)

    assert own["POPDIST_ARENA"] == f"{NEXT.arena}-0"
    assert FIRST.arena not in str(own)
    assert FIRST.links_key not in str(own)


def test_the_first_host_that_is_left_is_the_master() -> None:
    variables = generation_variables(plan(), (2, 4), NEXT)

    assert {own["MASTER_ADDR"] for own in variables} == {"10.0.0.2"}
    assert [own["GROUP_RANK"] for own in variables] == ["0", "1"]


def test_members_on_one_host_are_not_told_of_others() -> None:
    [first, second] = generation_variables(plan(), (2, 3), NEXT)

    assert first["POPDIST_LINKS"] is None
    assert first["POPDIST_INSTANCES_PER_HOST"] is None
    assert first["MASTER_ADDR"] == "127.0.0.1"
    assert (first["RANK"], second["LOCAL_RANK"]) == ("0", "1")


def test_all_members_have_what_they_had_at_the_start() -> None:
    job = plan()
    variables = generation_variables(job, range(6), job.attempt)

    for assignment, own in zip(job.assignments, variables, strict=True):
        kept = {name: value for name, value in own.items() if value is not None}
        assert kept.items() <= assignment.variables.items()


def test_a_variable_of_the_users_is_not_changed() -> None:
    [own, _] = generation_variables(plan(exports={"MASTER_PORT": "1"}), (0, 1), NEXT)

    assert "MASTER_PORT" not in own
