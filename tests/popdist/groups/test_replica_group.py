import pytest
from jobs import environments, outputs, run

pytestmark = pytest.mark.usefixtures("each_transport")


def test_a_group_of_all_replicas_has_as_many_as_the_job() -> None:
    body = """
    group = popdist.replica_group()
    x = popdist.rows(np.full((2, 3), rank + 1.0))
    y = group.all_reduce(x, "mean", out=x)
    print(len(group) == popdist.getNumTotalReplicas(), y is x, *x.tolist())
    """

    same = "True True [1.5, 1.5, 1.5] [1.5, 1.5, 1.5]"
    assert outputs(run((2, 2), body)) == [same] * 2


def test_consecutive_groups_are_of_neighbours() -> None:
    body = """
    x = popdist.rows(np.arange(4.0) + 4 * rank)
    print(popdist.replica_group("consecutive", 2).all_reduce(x).tolist())
    print(popdist.replica_group("consecutive", 8).all_reduce(x).tolist())
    """

    assert outputs(run((4, 4), body)) == [
        "[1.0, 1.0, 5.0, 5.0]\n[28.0, 28.0, 28.0, 28.0]",
        "[9.0, 9.0, 13.0, 13.0]\n[28.0, 28.0, 28.0, 28.0]",
    ]


def test_orthogonal_groups_are_of_replicas_that_are_far_apart() -> None:
    body = """
    x = popdist.rows(np.arange(4.0) + 4 * rank)
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
    x = popdist.rows(x)
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


def test_an_array_whose_rows_are_not_marked_is_warned_of_once_in_one_instance() -> None:
    body = """
    group = popdist.replica_group()
    gradient = np.ones((2, 3))
    for _ in range(2):
        group.all_reduce(gradient, op="mean", out=gradient)
    print(group.all_reduce(gradient).tolist(), group.broadcast(gradient).tolist())
    """

    first, second = run((2, 2), body)

    said = "[[4.0, 4.0, 4.0], [4.0, 4.0, 4.0]] [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]\n"
    assert (first.out, second.out) == (said, said)
    # Python 3.13 shows the line itself, too.
    assert first.err.splitlines()[0] == (
        "<string>:11: UserWarning: An array of shape (2, 3) is given to a group of "
        "replicas, of which this instance has 2: its rows are taken for their arrays, "
        "one for each. If so, write popdist.rows(x) in place of x, or give a list of 2 "
        "arrays. If all of x is one array of this instance, use "
        "popdist.instance_group() in place of popdist.replica_group()."
    )
    assert (first.err.count("UserWarning"), second.err) == (1, "")


@pytest.mark.parametrize(
    "call",
    [
        "group.all_reduce(x)",
        "group.all_reduce(x, async_op=True).wait()",
        "group.grouped_all_reduce([x])",
        "group.grouped_all_reduce([y, x], out=[y, x.copy()])",
        "group.reduce(x)",
        "group.reduce_scatter(np.ones((2, 4)))",
        "group.reduce_scatter(np.ones((2, 4)), out=np.ones((2, 1)))",
        "group.broadcast(x)",
        "group.all_gather(x)",
        "group.gather(x)",
        "group.all_to_all(np.ones((2, 4)))",
        "popdist.replica_group('consecutive', 2).all_reduce(x)",
    ],
)
def test_each_call_warns_at_the_line_of_the_program(call: str) -> None:
    body = f"""
    x, y = np.ones((2, 3)), popdist.rows(np.ones((2, 3)))
    group = popdist.replica_group()
    {call}
    """

    first, second = run((2, 2), body)

    assert first.err.startswith("<string>:10: UserWarning: An array of shape (2, ")
    assert (first.err.count("UserWarning"), second.err) == (1, "")


def test_rows_that_are_marked_are_not_warned_of() -> None:
    body = """
    group, x = popdist.replica_group(), np.full((2, 3), rank + 1.0)
    y = group.all_reduce(popdist.rows(x))
    print(type(y) is np.ndarray, y.tolist() == [[6.0] * 3] * 2)
    z = group.all_reduce(popdist.rows(x), out=popdist.rows(x))
    print(x.tolist() == y.tolist(), np.shares_memory(z, x))
    print(group.all_reduce([x[0], x[1]])[1].tolist())
    a, b = group.grouped_all_reduce([popdist.rows(x), [x[0], x[1]]], op="mean")
    print(a.tolist() == x.tolist(), b[1].tolist())
    print(group.reduce_scatter(popdist.rows(np.ones((2, 4)))).tolist())
    """

    said = (
        "True True\nTrue True\n[24.0, 24.0, 24.0]\nTrue [6.0, 6.0, 6.0]\n[[4.0], [4.0]]"
    )
    assert outputs(run((2, 2), body)) == [said] * 2


def test_a_warning_that_is_an_error_is_raised_before_anything_is_exchanged() -> None:
    body = """
    import warnings
    group, x = popdist.replica_group(), np.ones((2, 3))
    if rank == 0:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                group.all_reduce(x, out=x)
            except UserWarning:
                print("refused")
    print(group.all_reduce(x).tolist())
    """

    first, second = outputs(run((2, 2), body))

    assert (
        first == "refused\n" + second == "refused\n[[4.0, 4.0, 4.0], [4.0, 4.0, 4.0]]"
    )


def test_results_of_arithmetic_and_of_an_index_are_not_marked_and_copies_are() -> None:
    body = """
    x = popdist.rows(np.arange(6.0).reshape(2, 3))
    print(*(type(y).__name__ for y in (x, x[0], x[:1], x * 2, x.sum(0), x.copy(), x.T)))
    print(type(x.sum()).__name__, type(x[0, 0]).__name__)
    for wrong in ([1, 2], np.float32(1), np.ones(())):
        try:
            popdist.rows(wrong)
        except (TypeError, ValueError) as error:
            print(error)
    """

    assert outputs(run(1, body)) == [
        "ReplicaRows ndarray ndarray ndarray ndarray ReplicaRows ReplicaRows\n"
        "float64 float64\n"
        "popdist.rows() got list, but takes a numpy array. Give np.asarray(x), or a "
        "list of arrays to the group's call, without rows().\n"
        "popdist.rows() got float32, but takes a numpy array. Give np.asarray(x), or "
        "a list of arrays to the group's call, without rows().\n"
        "popdist.rows() got an array without an axis, but needs a leading axis for the "
        "local replicas. Give an array with one element for each."
    ]


def test_an_instance_with_one_replica_need_not_mark_rows() -> None:
    body = "print(popdist.replica_group().all_reduce(np.ones((1, 2))).tolist())"

    assert outputs(run((1, 1), body)) == ["[[2.0, 2.0]]"] * 2
