import pytest
from jobs import environments, outputs, run


def test_a_group_of_all_replicas_has_as_many_as_the_job() -> None:
    body = """
    group = popdist.replica_group()
    x = np.full((2, 3), rank + 1.0)
    y = group.all_reduce(x, "mean", out=x)
    print(len(group) == popdist.getNumTotalReplicas(), y is x, *x.tolist())
    """

    same = "True True [1.5, 1.5, 1.5] [1.5, 1.5, 1.5]"
    assert outputs(run((2, 2), body)) == [same] * 2


def test_consecutive_groups_are_of_neighbours() -> None:
    body = """
    x = np.arange(4.0) + 4 * rank
    print(popdist.replica_group("consecutive", 2).all_reduce(x).tolist())
    print(popdist.replica_group("consecutive", 8).all_reduce(x).tolist())
    """

    assert outputs(run((4, 4), body)) == [
        "[1.0, 1.0, 5.0, 5.0]\n[28.0, 28.0, 28.0, 28.0]",
        "[9.0, 9.0, 13.0, 13.0]\n[28.0, 28.0, 28.0, 28.0]",
    ]


def test_orthogonal_groups_are_of_replicas_that_are_far_apart() -> None:
    body = """
    x = np.arange(4.0) + 4 * rank
    print(popdist.replica_group("orthogonal", 4).all_reduce(x).tolist())
    print(popdist.replica_group("orthogonal", size=2).all_reduce(x).tolist())
    """

    assert outputs(run((4, 4), body)) == [
        "[12.0, 16.0, 12.0, 16.0]\n[4.0, 6.0, 8.0, 10.0]",
        "[12.0, 16.0, 12.0, 16.0]\n[4.0, 6.0, 8.0, 10.0]",
    ]


def test_a_group_may_begin_in_the_middle_of_an_instance() -> None:
    body = """
    first = popdist.getReplicaIndexOffset()
    x = np.arange(first, first + popdist.getNumLocalReplicas(), dtype=np.int32)
    print(popdist.replica_group("consecutive", 3).all_reduce(x).tolist())
    """

    assert outputs(run((2, 2, 2), body)) == ["[3, 3]", "[3, 12]", "[12, 12]"]


def test_every_operation_is_made_in_each_group() -> None:
    body = """
    groups = popdist.replica_group("orthogonal", 2)
    x = np.array([[1.0, 2.0], [3.0, 4.0]]) * 10**rank
    print(len(groups), groups)
    print(groups.broadcast(x, 1).tolist())
    print([[part.tolist() for part in row] for row in groups.all_gather(x)])
    print(groups.reduce_scatter(x).tolist())
    groups.barrier()
    """

    same = (
        "2 <ReplicaGroups: 2 rows in 2 groups>\n"
        "[[10.0, 20.0], [30.0, 40.0]]\n"
        "[[[1.0, 2.0], [10.0, 20.0]], [[3.0, 4.0], [30.0, 40.0]]]\n"
    )
    assert outputs(run((2, 2), body)) == [
        same + "[[11.0], [33.0]]",
        same + "[[22.0], [44.0]]",
    ]


def test_calls_of_several_groups_may_be_under_way_at_once() -> None:
    body = """
    groups = popdist.replica_group("orthogonal", 2)
    x = np.arange(2.0)
    handle = groups.all_reduce(x, out=x, async_op=True)
    print(handle.wait() is x, handle.test(), handle.result().tolist())
    print(groups.reduce_scatter(np.ones((2, 2)), async_op=True).wait().tolist())
    """

    assert outputs(run((2, 2), body)) == ["True True [0.0, 2.0]\n[[2.0], [2.0]]"] * 2


def test_rows_may_be_a_list_of_arrays() -> None:
    body = """
    rows = [np.ones(2), np.full(2, 5.0)]
    found = popdist.replica_group("orthogonal", 2).all_reduce(rows, "max")
    print([row.tolist() for row in found])
    """

    assert outputs(run((2, 2), body)) == ["[[1.0, 1.0], [5.0, 5.0]]"] * 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "'ring', 2",
            "groups is 'ring', but must be 'consecutive' or 'orthogonal', or left out "
            "together with size for one group of all replicas.",
        ),
        (
            "None, 2",
            "groups is None, but must be 'consecutive' or 'orthogonal', or left out "
            "together with size for one group of all replicas.",
        ),
        (
            "'consecutive', 3",
            "size is 3, but must be a divisor of the 4 replicas that are divided into "
            "groups.",
        ),
        (
            "'orthogonal', 0",
            "size is 0, but must be a divisor of the 4 replicas that are divided into "
            "groups.",
        ),
    ],
)
def test_replicas_that_cannot_be_divided_so_are_refused(
    arguments: str, message: str
) -> None:
    body = f"""
    try:
        popdist.replica_group({arguments})
    except ValueError as error:
        print(error)
    """

    assert outputs(run(1, body, environments((2, 2))[0])) == [message]


@pytest.mark.parametrize(("x", "rows"), [("np.ones((3, 2))", 3), ("np.ones(())", 0)])
def test_arrays_without_a_row_for_each_replica_are_refused(x: str, rows: int) -> None:
    body = f"""
    try:
        popdist.replica_group("consecutive", 1).all_reduce({x})
    except ValueError as error:
        print(error)
    """

    assert outputs(run((2,), body)) == [
        f"{rows} rows are given, but this instance has 2 replicas in the groups. Give "
        "an array with a leading axis of that length, or a list of so many arrays."
    ]
