"""Which nodes of a Slurm job a job of poprun runs on."""

import pytest

from poprun.errors import HostError, OptionError
from poprun.plan.slurm import (
    SlurmJob,
    check_is_only_task,
    choose_nodes,
    node_environment,
    partition_names,
    present_nodes,
    read_job,
)

FOUR = {"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "n[1-3,7]"}


def allocation(environ: dict[str, str]) -> SlurmJob:
    found = read_job(environ)
    assert found is not None
    return found


def chosen(num_instances: int, **environ: str) -> list[str]:
    variables = {**FOUR, **environ}
    nodes, _ = choose_nodes(allocation(variables), num_instances, variables)
    return [node.name for node in nodes]


def refusal(num_instances: int, **environ: str) -> str:
    with pytest.raises(OptionError) as caught:
        chosen(num_instances, **environ)
    return str(caught.value)


@pytest.mark.parametrize(
    "environ",
    [
        pytest.param({}, id="no-job"),
        pytest.param({"SLURM_JOB_NODELIST": "n1"}, id="no-number"),
        pytest.param(
            {"SLURM_JOB_ID": "-x", "SLURM_JOB_NODELIST": "n1"}, id="no-digits"
        ),
        pytest.param({"SLURM_JOB_ID": "12"}, id="no-nodes"),
        pytest.param({"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": ""}, id="empty"),
    ],
)
def test_outside_a_slurm_job_there_are_no_nodes(environ: dict[str, str]) -> None:
    assert read_job(environ) is None


def test_a_wrong_list_of_nodes_is_refused_by_the_name_of_its_variable() -> None:
    with pytest.raises(HostError) as caught:
        read_job({"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "n[0-"})

    assert str(caught.value).startswith("SLURM_JOB_NODELIST: 'n[0-' has an unmatched")


def test_the_tasks_that_the_user_has_asked_for_are_the_slots() -> None:
    asked = {"SLURM_NTASKS": "7", "SLURM_TASKS_PER_NODE": "2(x3),1"}

    nodes = allocation({**FOUR, **asked}).nodes

    assert [str(node) for node in nodes] == ["n1:2", "n2:2", "n3:2", "n7:1"]


def test_nodes_that_slurm_adds_have_the_fewest_slots_of_those_at_the_start() -> None:
    asked = {"SLURM_NTASKS": "9", "SLURM_TASKS_PER_NODE": "3,2(x3)"}

    nodes = present_nodes(allocation({**FOUR, **asked}), "12 n[1-2,8]\n")

    assert [str(node) for node in nodes] == ["n1:3", "n2:2", "n8:2"]


def test_without_tasks_no_node_has_slots() -> None:
    nodes = present_nodes(allocation(FOUR), "12 n[8-9]\n")

    assert [str(node) for node in nodes] == ["n8", "n9"]


def test_the_nodes_of_other_parts_of_a_job_are_not_its_own() -> None:
    listing = "CLUSTER: main\n11 n[4-6]\n12 n1\n112 n7\n"

    assert [node.name for node in present_nodes(allocation(FOUR), listing)] == ["n1"]


@pytest.mark.parametrize(
    ("listing", "message"),
    [
        ("12 \n", "It lists no nodes of job 12."),
        ("11 n1\n", "It lists no nodes of job 12."),
        ("12 n[0-\n", r"squeue: 'n\[0-' has an unmatched"),
    ],
)
def test_a_listing_without_nodes_is_refused(listing: str, message: str) -> None:
    with pytest.raises(HostError, match=message):
        present_nodes(allocation(FOUR), listing)


@pytest.mark.parametrize(
    "environ",
    [
        pytest.param({"SLURM_TASKS_PER_NODE": "1(x4)"}, id="not-asked-for"),
        pytest.param(
            {
                "SLURM_NTASKS": "1",
                "SLURM_TASKS_PER_NODE": "1(x4)",
                "SLURM_STEP_ID": "0",
            },
            id="of-a-step",
        ),
        pytest.param({"SLURM_NTASKS": "2", "SLURM_TASKS_PER_NODE": "2"}, id="too-few"),
        pytest.param(
            {"SLURM_NTASKS": "2", "SLURM_TASKS_PER_NODE": "nonsense"}, id="nonsense"
        ),
    ],
)
def test_otherwise_the_nodes_have_no_slots(environ: dict[str, str]) -> None:
    assert {node.slots for node in allocation({**FOUR, **environ}).nodes} == {None}


@pytest.mark.parametrize("num_instances", [4, 8])
def test_all_nodes_are_used_where_the_instances_divide(num_instances: int) -> None:
    assert chosen(num_instances) == ["n1", "n2", "n3", "n7"]


def test_fewer_instances_than_nodes_get_one_node_each() -> None:
    assert chosen(2) == ["n1", "n2"]


def test_the_first_of_fewer_instances_runs_where_poprun_does() -> None:
    assert chosen(2, SLURMD_NODENAME="n7") == ["n7", "n1"]
    assert chosen(4, SLURMD_NODENAME="n7") == ["n1", "n2", "n3", "n7"]


def test_instances_that_do_not_divide_are_refused_with_the_nearest_that_do() -> None:
    assert refusal(6) == (
        "6 instances cannot be shared equally among the 4 nodes that Slurm "
        "has given this job. Ask for 4 or 8 with --num-instances, or name "
        "fewer of the nodes with --host."
    )


def test_more_instances_than_tasks_on_a_node_are_refused() -> None:
    asked = {"SLURM_NTASKS_PER_NODE": "1", "SLURM_TASKS_PER_NODE": "1(x4)"}

    assert refusal(8, **asked) == (
        "Slurm has given this job 1 task on the node n1, but 2 instances "
        "would run there. Ask Slurm for --ntasks-per-node=2, ask poprun "
        "for fewer instances with --num-instances, or name the hosts with "
        "--host."
    )


def test_a_note_says_which_nodes_are_used_if_not_all() -> None:
    variables = {**FOUR, "SLURMD_NODENAME": "n7"}

    assert choose_nodes(allocation(variables), 4, variables)[1] == []
    assert choose_nodes(allocation(variables), 2, variables)[1] == [
        "Slurm has given this job 4 nodes, but 2 instances can use only 2 (n7, n1). "
        "-n 4 starts one on each node."
    ]


def test_the_partition_of_a_slurm_job_bears_its_number() -> None:
    assert partition_names(FOUR) == ("slurm_12", "p12")
    assert partition_names({}) == ()


def test_only_one_task_of_a_step_may_start_a_job() -> None:
    check_is_only_task({"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1"})
    check_is_only_task({"SLURM_STEP_NUM_TASKS": "2"})
    with pytest.raises(OptionError, match="srun has started 2 copies of poprun"):
        check_is_only_task({"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"})


def test_instances_of_other_nodes_see_the_job_but_no_step_and_no_task() -> None:
    agents = {
        "HOME": "/home/a",
        "SLURMD_NODENAME": "n2",
        "SLURM_JOB_ID": "12",
        "SLURM_PROCID": "0",
        "SLURM_STEP_ID": "5",
        "SLURM_STEP_NUM_TASKS": "1",
        "SLURM_NTASKS": "1",
        "SLURM_SRUN_COMM_PORT": "4000",
    }
    callers = {
        "HOME": "/elsewhere",
        "SLURMD_NODENAME": "n1",
        "SLURM_JOB_ID": "12",
        "SLURM_NTASKS": "8",
        "SLURM_PROCID": "0",
        "SLURM_STEPID": "4",
    }

    assert node_environment(agents, callers) == {
        "HOME": "/home/a",
        "SLURMD_NODENAME": "n2",
        "SLURM_JOB_ID": "12",
        "SLURM_NTASKS": "8",
    }
