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


def test_groups_of_replicas_have_a_length_and_a_face() -> None:
    body = """
    groups = popdist.replica_group("orthogonal", 2)
    print(len(groups), groups)
    """

    said = "2 <ReplicaGroups: 3 rows in 3 groups>"
    assert outputs(run((3, 3), body)) == [said] * 2


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
