import pytest
from jobs import environments, outputs, run


def test_a_backend_is_registered_initialised_and_finalised_once_each() -> None:
    body = """
    print(popdist.isBackendInitialized())
    popdist.registerDefaultBackend()
    popdist.initializeBackend()
    print(popdist.isBackendInitialized())
    popdist.finalizeBackend()
    print(popdist.isBackendInitialized())
    """

    assert outputs(run(2, body)) == ["False\nTrue\nFalse"] * 2


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        (
            "initializeBackend",
            "No backend is registered, so there is none to initialise. Call "
            "popdist.registerDefaultBackend() first, or popdist.init() instead.",
        ),
        (
            "registerDefaultBackend registerDefaultBackend",
            "A backend is registered already, and a process registers one only once. "
            "Leave this call out, or call popdist.init(), which can be repeated.",
        ),
        (
            "init initializeBackend",
            "The backend is initialized already, and can be initialised only once. "
            "Call popdist.init(), which can be repeated until it is finalised.",
        ),
        (
            "init finalizeBackend init",
            "The backend is finalized already, and can be initialised only once. "
            "Call popdist.init(), which can be repeated until it is finalised.",
        ),
        (
            "registerDefaultBackend finalizeBackend",
            "The backend is registered, but only an initialised one can be finalised, "
            "and only once. Leave this call out: it happens at exit.",
        ),
        (
            "init finalizeBackend finalizeBackend",
            "The backend is finalized, but only an initialised one can be finalised, "
            "and only once. Leave this call out: it happens at exit.",
        ),
    ],
)
def test_calls_out_of_order_are_refused(calls: str, message: str) -> None:
    body = f"""
    *first, last = {calls.split()}
    for name in first:
        getattr(popdist, name)()
    try:
        getattr(popdist, last)()
    except popdist.BackendError as error:
        print(error)
    """

    assert outputs(run(1, body)) == [message]


def test_init_can_be_repeated_and_finishes_what_was_begun() -> None:
    body = """
    popdist.registerDefaultBackend()
    popdist.init()
    popdist.init()
    print(popdist.isBackendInitialized(), popdist.popdist_core.init is popdist.init)
    """

    assert outputs(run(2, body)) == ["True True"] * 2


def test_a_backend_in_a_file_is_refused() -> None:
    body = """
    try:
        popdist.registerBackend("libbackend.so")
    except popdist.BackendError as error:
        print(error)
    """

    assert outputs(run(1, body)) == [
        "'libbackend.so' cannot be registered, because popdist has no backends in "
        "separate files. Call popdist.registerDefaultBackend() instead."
    ]


def test_collectives_need_no_init_but_none_is_possible_after_the_end() -> None:
    body = """
    print(collectives.allReduceSum(np.ones(1)))
    popdist.init()
    popdist.finalizeBackend()
    try:
        collectives.allReduceSum(np.ones(1))
    except popdist.GroupUnusableError as error:
        print(error)
    """

    words = (
        "[2.]\nThis process has finalised popdist's backend, or is ending, and can "
        "take part in no more collectives. Call popdist.finalizeBackend() after the "
        "last one."
    )
    assert outputs(run(2, body)) == [words] * 2


def test_on_several_hosts_init_passes_and_starts_no_mpi() -> None:
    body = """
    import sys
    popdist.init()
    print(popdist.getNumInstances(), "mpi4py" in sys.modules)
    print(popdist.execute_on_instances({0}, collectives.allReduceSum, np.ones(1)))
    """
    told = environments((1, 1, 1, 1))[0] | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}

    assert outputs(run(1, body, told)) == ["4 False\n[1.]"]


def test_collectives_over_several_hosts_need_mpis_mpirun() -> None:
    body = """
    try:
        popdist.replica_group()
    except popdist.ArenaError as error:
        print(error)
    """
    told = environments((1, 1, 1, 1))[0] | {"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
    # Started without an mpirun, Open MPI 5 leaves its shared memory behind.
    told["OMPI_MCA_btl"] = "self"

    # Open MPI itself writes to stderr that no mpirun has started it.
    assert [one.out.strip() for one in run(1, body, told)] == [
        "This process is instance 0 of 4, but rank 0 of 1 for MPI, by which popdist "
        "reaches other hosts. Start the program with poprun, or with the mpirun of "
        "the MPI that mpi4py uses (MPI4PY_LIBMPI names its libmpi), or set "
        "POPDIST_LINKS=tcp://HOST:PORT/SECRET to use TCP."
    ]


def test_a_function_runs_on_the_listed_instances_and_returns_none_elsewhere() -> None:
    body = """
    def total(start, *, scale):
        return [collectives.allReduceSum(np.full(1, start + rank)).tolist(), scale]

    print(popdist.execute_on_instances({2, 1}, total, 10, scale=3))
    print(len(popdist.replica_group()))
    """

    assert outputs(run((2, 2, 2), body)) == [
        "None\n6",
        "[[23], 3]\n6",
        "[[23], 3]\n6",
    ]


def test_within_it_the_replicas_are_those_of_the_listed_instances() -> None:
    body = """
    def total():
        group = popdist.replica_group()
        ones = popdist.rows(np.ones(group.num_local_replicas))
        return len(group), group.all_reduce(ones).tolist()

    print(popdist.execute_on_instances([0, 2], total))
    """

    assert outputs(run((1, 2, 3), body)) == [
        "(4, [4.0])",
        "None",
        "(4, [4.0, 4.0, 4.0])",
    ]


def test_it_can_be_nested_and_what_is_raised_comes_through() -> None:
    body = """
    def inner():
        raise KeyError(collectives.allReduceSum(np.ones(1)).tolist())

    def outer():
        try:
            popdist.execute_on_instances([2], inner)
        except KeyError as error:
            print("raised", error)
        return collectives.allReduceSum(np.ones(1))[0]

    print(popdist.execute_on_instances([1, 2], outer))
    print(collectives.allReduceSum(np.ones(1))[0])
    """

    assert outputs(run(3, body)) == [
        "None\n3.0",
        "2.0\n3.0",
        "raised [1.0]\n2.0\n3.0",
    ]


@pytest.mark.parametrize(
    ("instances", "message"),
    [
        (
            "{0, 3}",
            "The instances are 0, 3, but must be one or more of 0 to 2, as this",
        ),
        ("{-1}", "The instances are -1, but must be one or more of 0 to 2, as this"),
        ("[]", "The instances are none, but must be one or more of 0 to 2, as this"),
        ("[0.5]", "0.5 is not an instance. Instances are whole numbers, from 0."),
        ("[True]", "True is not an instance. Instances are whole numbers, from 0."),
    ],
)
def test_instances_that_the_job_does_not_have_are_refused(
    instances: str, message: str
) -> None:
    body = f"""
    try:
        popdist.execute_on_instances({instances}, print, "ran")
    except (TypeError, ValueError) as error:
        print(error)
    """

    [said] = outputs(run(1, body, environments((1, 1, 1))[0]))
    assert said.startswith(message)


def test_nothing_runs_on_instances_that_do_not_run_the_rest() -> None:
    body = """
    try:
        popdist.execute_on_instances([0], popdist.execute_on_instances, [0, 1], print)
    except ValueError as error:
        print(error)
    """

    assert outputs(run(1, body, environments((1, 1))[0])) == [
        "The instances are 0, 1, but only 0 run this part of the program. Choose among "
        "those."
    ]


def test_a_communicator_is_among_its_participants() -> None:
    body = """
    popdist.registerCommunicator({0, 2}, "even")
    if rank != 1:
        print(collectives.allReduceSum(np.ones(1), "x", "even"))
    try:
        if rank == 1:
            collectives.allReduceSum(np.ones(1), "x", "even")
    except ValueError as error:
        print(error)
    """

    assert outputs(run(3, body)) == [
        "[2.]",
        "Instance 1 is not in the communicator 'even', which is among the instances "
        "0, 2. Only those may call it.",
        "[2.]",
    ]


def test_the_default_communicator_can_be_registered_anew() -> None:
    body = """
    popdist.registerCommunicator([0, 1])
    if rank < 2:
        print(collectives.allReduceSum(np.ones(1)))
    popdist.registerCommunicator([0, 1, 2], popdist.defaultCommunicatorId())
    print(collectives.allReduceSum(np.ones(1)))
    """

    assert outputs(run(3, body)) == ["[2.]\n[3.]", "[2.]\n[3.]", "[3.]"]


def test_instances_that_register_different_communicators_are_told_so() -> None:
    body = """
    try:
        popdist.registerCommunicator([rank], "own")
    except popdist.MismatchError as error:
        print(error)
    """

    words = (
        "registerCommunicator got different parameters: instance 0 gave ([0], 'own'), "
        "but instance 1 gave ([1], 'own'). All instances must give the same."
    )
    assert outputs(run(2, body)) == [words] * 2


def test_a_communicator_that_nobody_registered_is_refused() -> None:
    body = """
    try:
        collectives.barrier("x", "mine")
    except ValueError as error:
        print(error)
    """

    assert outputs(run(1, body)) == [
        "There is no communicator 'mine'. Call "
        "popdist.registerCommunicator(participants, id) on all instances first."
    ]


def test_a_communicator_that_reaches_too_far_is_refused() -> None:
    body = """
    popdist.registerCommunicator([0, 1], "both")
    try:
        popdist.execute_on_instances([0], collectives.barrier, "x", "both")
    except ValueError as error:
        print(error)
    """

    assert outputs(run(2, body)) == [
        "The communicator 'both' is among the instances 0, 1, but only 0 run this part "
        "of the program. Call it outside execute_on_instances.",
        "",
    ]


# Two threads that make a call at the same time, and how many of them were refused.
TOGETHER = """
refused = []
def call(step):
    try:
        step()
    except popdist.BackendError as error:
        refused.append(error)
def together(step):
    threads = [threading.Thread(target=call, args=[step]) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(len(refused), popdist.isBackendInitialized())
"""


def test_several_threads_may_call_init_at_the_same_time() -> None:
    body = """
from popdist import backend
register = backend.registerDefaultBackend
def slowly():
    time.sleep(0.3)
    register()
backend.registerDefaultBackend = slowly
together(popdist.init)
"""

    assert outputs(run(2, TOGETHER + body)) == ["0 True"] * 2


def test_of_two_threads_that_initialise_the_backend_one_is_refused() -> None:
    body = """
popdist.registerDefaultBackend()
if rank == 1:
    # The others wait in the middle of it meanwhile.
    time.sleep(0.5)
together(popdist.initializeBackend)
"""

    assert outputs(run(2, TOGETHER + body)) == ["1 True"] * 2


def test_a_first_collective_without_init_leaves_the_backend_to_its_functions() -> None:
    body = """
    collectives.barrier()
    print(popdist.isBackendInitialized())
    popdist.registerDefaultBackend()
    popdist.initializeBackend()
    print(popdist.isBackendInitialized())
    """

    assert outputs(run(2, body)) == ["False\nTrue"] * 2
