import pytest
from jobs import outputs, run, run_alone

pytestmark = pytest.mark.usefixtures("each_transport")


def test_a_group_of_instances_takes_arrays_without_an_axis_for_replicas() -> None:
    body = """
    group = popdist.instance_group()
    x = np.full(3, rank + 1.0)
    print(len(group), group.rank == rank, group.all_reduce(x).tolist())
    print(group.broadcast(x, 1).tolist(), [a.tolist() for a in group.all_gather(x)])
    """

    said = "[3.0, 3.0, 3.0]\n[2.0, 2.0, 2.0] [[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]]"
    assert outputs(run((2, 3), body)) == [f"2 True {said}"] * 2


def test_members_of_a_group_of_instances_send_and_receive() -> None:
    body = """
    group = popdist.instance_group()
    if rank == 0:
        group.send(np.arange(3.0), 1)
    else:
        print(group.recv(np.zeros(3), 0).tolist())
    """

    assert outputs(run((2, 2), body)) == ["", "[0.0, 1.0, 2.0]"]


def test_one_instance_without_poprun_has_a_group_of_itself() -> None:
    body = "print(popdist.instance_group().all_reduce(np.arange(2.0)).tolist())"

    assert outputs(run_alone(body)) == ["[0.0, 1.0]"]


def test_within_execute_on_instances_members_are_numbered_anew() -> None:
    body = """
    def among_them():
        group = popdist.instance_group()
        return group.rank, len(group), group.broadcast(np.array(rank), 0).item()

    print(popdist.execute_on_instances({1, 2}, among_them))
    """

    assert outputs(run(3, body)) == ["None", "(0, 2, 1)", "(1, 2, 1)"]


def test_it_shares_the_order_of_calls_with_the_group_of_replicas() -> None:
    body = """
    instances, replicas = popdist.instance_group(), popdist.replica_group()
    handle = instances.all_reduce(np.ones(2), async_op=True)
    print(replicas.all_reduce(popdist.rows(np.ones((2, 1)))).tolist(), handle.test())
    """

    assert outputs(run((2, 2), body)) == ["[[4.0], [4.0]] True"] * 2


@pytest.mark.parametrize(
    "call", ["all_reduce(x)", "broadcast(x)", "all_gather(x)", "reduce(x)"]
)
def test_a_leading_axis_that_a_group_of_replicas_misses_is_an_error(call: str) -> None:
    body = f"""
    x = np.ones((5, 3))
    try:
        popdist.replica_group().{call}
    except ValueError as error:
        print(error)
    """

    message = (
        "5 rows are given, but this instance has 2 replicas in the group. Give "
        "popdist.rows(x), where x has a leading axis of 2, one row for each local "
        "replica, or a list of 2 arrays. popdist.instance_group() takes arrays as they "
        "are, without that axis."
    )
    assert outputs(run((2,), body)) == [message]


def test_a_group_is_closed_at_the_end_of_a_with_block() -> None:
    body = """
    with popdist.instance_group() as group:
        print(group.all_reduce(np.ones(1)).tolist())
    try:
        group.barrier()
    except popdist.GroupUnusableError:
        print(group)
    """

    said = "[2.0]\n<Group: member {} of 2, 2 replicas, closed>"
    assert outputs(run(2, body)) == [said.format(0), said.format(1)]


def test_groups_of_replicas_are_closed_at_the_end_of_a_with_block() -> None:
    body = """
    try:
        with popdist.replica_group("orthogonal", 2) as groups:
            groups.barrier()
            raise KeyError("mine")
    except KeyError as error:
        print(error)
    try:
        groups.barrier()
    except popdist.GroupUnusableError:
        print("closed")
    """

    assert outputs(run((2, 2), body)) == ["'mine'\nclosed"] * 2


def test_an_error_in_a_with_block_ends_the_group_if_calls_are_under_way() -> None:
    body = """
    try:
        with popdist.instance_group() as group:
            if rank == 0:
                group.recv(np.zeros(3), 1, async_op=True)
                raise ValueError("mine")
            group.recv(np.zeros(3), 0)
    except (ValueError, popdist.PopdistError) as error:
        print(type(error).__name__, error)
    """

    assert outputs(run(2, body)) == [
        "ValueError mine",
        "CollectiveAbortedError Instance 0 failed in a with block, which ended it for "
        "all: ValueError: mine",
    ]


COLLECTIVES = (
    "all_reduce(x, ",
    "grouped_all_reduce([x], ",
    "reduce(x, ",
    "reduce_scatter(x, ",
    "broadcast(x, ",
    "all_gather(x, ",
    "gather(x, ",
    "scatter(x, ",
    "all_to_all(x, ",
    "barrier(",
)


@pytest.mark.parametrize("call", COLLECTIVES)
def test_every_collective_has_a_name_that_all_members_must_give(call: str) -> None:
    body = f"""
    group, x = popdist.instance_group(), np.ones((2, 3))
    group.{call}name="one")
    try:
        group.{call}name=f"of {{rank}}")
    except popdist.MismatchError as error:
        print("named" in str(error))
    """

    assert outputs(run(2, body)) == ["True"] * 2
