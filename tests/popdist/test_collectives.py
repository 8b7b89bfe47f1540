import pytest
from jobs import environments, outputs, run

pytestmark = pytest.mark.usefixtures("each_transport")


def test_the_sum_replaces_the_array() -> None:
    body = """
    data = np.array([[1, 2], [3, 4]], np.int16) * (rank + 1)
    print(collectives.allReduceSum(data, "weights") is data, data.tolist())
    """

    assert outputs(run(3, body)) == ["True [[6, 12], [18, 24]]"] * 3


def test_the_array_of_the_root_replaces_all_others() -> None:
    body = """
    data = np.full(2, rank, np.float32)
    print(collectives.broadcast(data, 1, "weights") is data, data.tolist())
    """

    assert outputs(run(3, body)) == ["True [1.0, 1.0]"] * 3


def test_the_root_is_an_instance_of_the_job_in_every_communicator() -> None:
    body = """
    def share():
        return collectives.broadcast(np.array([rank]), 2)

    print(popdist.execute_on_instances({1, 2}, share))
    try:
        popdist.execute_on_instances({1, 2}, collectives.broadcast, np.ones(1), 0)
    except ValueError as error:
        print(error)
    """
    refusal = (
        "The root is instance 0, but the communicator 'popdist.default' is among the "
        "instances 1, 2. Choose one of those."
    )

    assert outputs(run(3, body)) == ["None", f"[2]\n{refusal}", f"[2]\n{refusal}"]


def test_the_arrays_of_all_instances_are_gathered_in_their_order() -> None:
    body = """
    mine = np.array([rank, rank + 10])
    print(collectives.allGather(mine, None, "a").tolist())
    dst = np.zeros((3, 2), int)
    print(collectives.allGather(mine, dst, "b") is dst, dst.tolist())
    held = np.zeros((3, 2), int)
    held[rank] = mine
    print(collectives.allGather(None, held, "c", inplace=True) is held, held.tolist())
    """
    found = "[[0, 10], [1, 11], [2, 12]]"

    assert outputs(run(3, body)) == [f"{found}\nTrue {found}\nTrue {found}"] * 3


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            "collectives.allReduceSum(np.ones(3 + (rank == 2)), 'weights')",
            "instance 0 came to all_reduce of float64 (3,) named 'weights', but "
            "instance 2 came to all_reduce of float64 (4,) named 'weights'",
        ),
        (
            "collectives.allReduceSum(np.ones(99, 'f4' if rank else 'f8'))",
            "instance 0 came to all_reduce of float64 (99,), but instance 1 came to "
            "all_reduce of float32 (99,)",
        ),
        (
            "collectives.broadcast(np.ones((2, 3) if rank else (3, 2)), 0, 'weights')",
            "instance 0 came to broadcast from instance 0 of float64 (3, 2) named "
            "'weights', but instance 1 came to broadcast from instance 0 of float64 "
            "(2, 3) named 'weights'",
        ),
        (
            "collectives.broadcast(np.ones(3), int(rank == 1), 'weights')",
            "instance 0 came to broadcast from instance 0 of float64 (3,) named "
            "'weights', but instance 1 came to broadcast from instance 1 of float64 "
            "(3,) named 'weights'",
        ),
        (
            "collectives.allGather(np.ones(3 + rank), None, 'weights')",
            "instance 0 came to all_gather of float64 (3,) named 'weights', but "
            "instance 1 came to all_gather of float64 (4,) named 'weights'",
        ),
        (
            "collectives.allReduceSum(np.ones(3)) if rank else "
            "collectives.allGather(np.ones(3))",
            "instance 0 came to all_gather of float64 (3,), but instance 1 came to "
            "all_reduce of float64 (3,)",
        ),
    ],
    ids=["elements", "dtype", "shape", "root", "gathered", "operation"],
)
def test_calls_that_differ_are_an_error_on_all_instances_which_go_on(
    call: str, words: str
) -> None:
    body = f"""
    for _ in range(2):
        try:
            {call}
        except popdist.MismatchError as error:
            print(error)
        print(collectives.allReduceSum(np.ones(3)).tolist())
    """

    lines = (
        f"Tensor layouts did not match on all instances: {words}. All instances must "
        "make the same calls in the same order.\n[3.0, 3.0, 3.0]"
    )
    assert outputs(run(3, body)) == [f"{lines}\n{lines}"] * 3


def test_a_barrier_holds_until_all_have_come() -> None:
    body = """
    collectives.barrier("begin")
    if rank == 1:
        time.sleep(0.5)
        print("late", time.monotonic_ns())
    collectives.barrier("end")
    print("passed", time.monotonic_ns())
    """

    others, late = outputs(run(2, body))

    came = int(late.split()[1])
    assert int(others.split()[1]) > came


def test_an_instance_that_is_killed_is_named_to_all_others() -> None:
    body = """
    collectives.barrier("begin")
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        collectives.allReduceSum(np.ones(1), "weights")
    except popdist.PeerLostError as error:
        print(error.instances)
    """

    ended = run(3, body)

    assert [one.code for one in ended] == [0, -9, 0]
    assert [one.out for one in ended] == ["(1,)\n", "", "(1,)\n"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            "allReduceSum([1.0])",
            "data is list, but must be a writable numpy array, because it is filled "
            "in place.",
        ),
        (
            "broadcast(np.broadcast_to(1.0, 3), 0)",
            "data is ndarray, but must be a writable numpy array, because it is "
            "filled in place.",
        ),
        (
            "allGather(None, np.ones((2, 1)))",
            "allGather takes data, and maybe dst; or, with inplace=True, None for data "
            "and a dst that holds this instance's row. Give one or the other.",
        ),
        (
            "allGather(np.ones(1), np.ones((3, 1)))",
            "dst has shape (3, 1), but needs a leading axis of 2: a row for each "
            "instance.",
        ),
    ],
)
def test_an_array_that_cannot_be_written_is_refused_at_once(
    call: str, message: str
) -> None:
    body = f"""
    try:
        collectives.{call}
    except (TypeError, ValueError) as error:
        print(error)
    """

    assert outputs(run(1, body, environments((1, 1))[0])) == [message]


def test_a_destination_of_another_layout_is_refused_where_it_is_given() -> None:
    body = """
    dst = np.ones((2, 3 if rank else 1))
    try:
        print(collectives.allGather(np.ones(1), dst).tolist())
    except ValueError as error:
        print(error)
    """

    assert outputs(run(2, body)) == [
        "[[1.0], [1.0]]",
        "dst has rows of float64 of shape (3,), but the instances gather float64 of "
        "shape (1,).",
    ]
