import re
import subprocess
import sys
from math import inf
from pathlib import Path

import pytest
from conftest import ROOT
from jobs import outputs, run, run_alone
from meeting import STACKS

from popdist import session
from popdist.generations import LOST, Change


def test_without_poprun_every_call_works_with_one_instance() -> None:
    body = """
    popdist.init()
    group = popdist.replica_group()
    print(len(group), group.all_reduce(np.full((1, 2), 3.0)).tolist())
    print(collectives.allGather(np.arange(2)).tolist())
    popdist.finalizeBackend()
    """

    assert outputs(run_alone(body)) == ["1 [[3.0, 3.0]]\n[[0, 1]]"]


def test_init_on_one_host_never_loads_mpi() -> None:
    body = """
    popdist.init()
    popdist.replica_group().all_reduce(np.ones((1, 1)))
    print(any("mpi4py" in name for name in sys.modules))
    """

    assert outputs(run(2, body)) == ["False", "False"]


def test_the_getters_load_neither_numpy_nor_the_engine() -> None:
    code = (
        "import sys, popdist; popdist.getNumTotalReplicas(); "
        "heavy = {'numpy', 'socket', 'json', 'threading', 'popdist.engine'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )

    ran = subprocess.run(
        [sys.executable, "-S", "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )

    assert ran.stdout == "[]\n"


def test_instances_with_different_numbers_of_replicas_tell_each_other() -> None:
    body = """
    group = popdist.replica_group()
    rows = popdist.rows(np.full((popdist.getNumLocalReplicas(), 1), rank + 1.0))
    print(len(group), group.replicas, group.all_reduce(rows).tolist())
    """

    assert outputs(run((1, 3), body)) == [
        "4 (1, 3) [[7.0]]",
        "4 (1, 3) [[7.0], [7.0], [7.0]]",
    ]


def test_a_setting_that_cannot_be_is_told_before_anybody_is_waited_for() -> None:
    body = """
    try:
        popdist.init()
    except popdist.SettingError as error:
        print(error)
    """

    words = (
        "POPDIST_TIMEOUT is 'ever', but must be a number of seconds more than 0, or a "
        "duration such as 90s, 5m or 1h30m. Correct it, or unset it."
    )
    assert outputs(run(2, body, {"POPDIST_TIMEOUT": "ever"})) == [words] * 2


def test_the_users_algorithm_is_the_groups() -> None:
    body = """
    group = popdist.replica_group()
    group.all_reduce(np.ones((1, 100000)))
    print(group.last_algorithm)
    """

    assert outputs(run(2, body, {"POPDIST_ALGORITHM": "ring"})) == ["ring"] * 2


def test_the_users_timeout_is_the_groups(tmp_path: Path) -> None:
    body = f"""
    gave_up = {str(tmp_path / "gave up")!r}
    if rank == 1:
        from popdist.engine.meet import deadlines
        # On a busy machine the instances may meet late: no time passes until then.
        deadlines.monotonic = lambda: 0.0
        os.environ["POPDIST_TIMEOUT"] = "2"
    group = popdist.replica_group()
    if rank == 0:
        while not os.path.exists(gave_up):
            time.sleep(0.01)
    else:
        try:
            group.barrier()
        except popdist.CollectiveTimeoutError as error:
            print("within 2 s" in str(error))
        open(gave_up, "w").close()
    """

    ended = run(2, body)

    assert [one.out for one in ended] == ["", "True\n"]


def test_an_instance_that_does_not_come_is_named_on_stderr(tmp_path: Path) -> None:
    body = f"""
    report = {str(tmp_path / "stderr")!r}
    if rank == 0:
        os.dup2(os.open(report, os.O_CREAT | os.O_WRONLY), 2)
    collectives.barrier("warm")
    while rank == 1 and "for instance 1 (process " not in open(report).read():
        time.sleep(0.01)
    collectives.barrier("cold")
    """

    ended = run(2, body, {"POPDIST_STALL_TIMEOUT": "0.2"})

    assert [one.code for one in ended] == [0, 0]


def test_after_a_fork_the_child_is_told_and_the_parent_goes_on() -> None:
    body = """
    popdist.init()
    child = os.fork()
    if child == 0:
        for function in (popdist.init, popdist.replica_group, collectives.barrier):
            try:
                function()
            except popdist.GroupUnusableError as error:
                print(error, flush=True)
        sys.exit()
    os.waitpid(child, 0)
    print(collectives.allReduceSum(np.ones(1)))
    """
    words = (
        "This process was forked from instance {} after that had joined its group, and "
        "cannot take part in collectives. Make the calls in that instance, or fork "
        "before popdist.init() and make them in the child alone.\n"
    )

    assert outputs(run(2, body)) == [words.format(i) * 3 + "[2.]" for i in range(2)]


def test_a_child_that_is_forked_while_another_thread_meets_is_refused(
    tmp_path: Path,
) -> None:
    body = """
    import warnings
    from popdist.session import STATE
    # Python 3.12 warns of forks of processes with several threads.
    warnings.simplefilter("ignore", DeprecationWarning)
    forked = os.environ["FORKED"]
    if rank == 1:
        while not os.path.exists(forked):
            time.sleep(0.01)
        popdist.init()
    else:
        meeting = threading.Thread(target=popdist.init)
        meeting.start()
        while STATE._claim._socket is None:
            time.sleep(0.01)
        child = os.fork()
        if child == 0:
            try:
                popdist.init()
            except popdist.GroupUnusableError as error:
                print(str(error).replace(str(os.getppid()), "P"), flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        open(forked, "w").close()
        meeting.join()
    print(collectives.allReduceSum(np.ones(1)))
    """
    environ = {"FORKED": str(tmp_path / "forked"), "POPDIST_TIMEOUT": "60"}

    first, second = outputs(run(2, body, environ))

    refused, result = first.splitlines()
    assert refused.startswith(
        "Process P has joined its groups as instance 0 and takes "
    )
    assert result == second == "[2.]"


def test_a_process_may_fork_first_and_let_the_child_take_part() -> None:
    body = """
    popdist.getNumInstances()
    from popdist.session import STATE
    child = os.fork()
    if child == 0:
        popdist.init()
        print(collectives.allReduceSum(np.ones(1)), flush=True)
    else:
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """

    assert outputs(run(2, body)) == ["[2.]"] * 2


# A program that an instance starts, and what it says when it is refused.
CHILD = """
    import subprocess
    code = "import numpy as np, popdist\\ntry: print(" + (
        "popdist.collectives.allReduceSum(np.full(1, 1000.), 'w'), flush=True)\\n"
        "except popdist.PopdistError as error: print(type(error).__name__, error)"
    )
    def start(**environ):
        own = {name: text for name, text in os.environ.items() if name not in environ}
        found = {name: text for name, text in environ.items() if text is not None}
        child = subprocess.Popen([sys.executable, "-c", code], env={**own, **found})
        child.wait()
        return child.pid
"""


@pytest.mark.parametrize("parent", [0, 1])
def test_a_child_process_of_an_instance_is_refused_at_once(
    parent: int,
) -> None:
    body = f"""
    {CHILD}
    popdist.init()
    if rank == {parent}:
        print(start(), os.getpid(), flush=True)
    print(collectives.allReduceSum(np.ones(1), "w"))
    """

    said = outputs(run(2, body))

    refusal, pids, result = said.pop(parent).split("\n")
    child, pid = pids.split()
    assert refusal == (
        f"GroupUnusableError Process {pid} has joined its groups as instance {parent} "
        f"and takes part in collectives itself, so process {child} cannot. Make the "
        "calls in that process, or start a separate job with poprun."
    )
    assert [result, *said] == ["[2.]"] * 2


def test_joining_leaves_the_environment_as_it_was() -> None:
    # Threads of libraries may read it meanwhile.
    body = """
    before = dict(os.environ)
    popdist.init()
    print(dict(os.environ) == before)
    """

    assert outputs(run(2, body)) == ["True"] * 2


def test_a_program_that_replaces_an_instance_may_join_again() -> None:
    body = """
    popdist.init()
    code = "import popdist; print(len(popdist.replica_group()))"
    os.execv(sys.executable, [sys.executable, "-c", code])
    """

    assert outputs(run(2, body)) == ["2"] * 2


def test_once_the_instances_have_left_what_they_start_may_join() -> None:
    body = f"""
    {CHILD}
    popdist.init()
    popdist.finalizeBackend()
    start()
    """

    assert outputs(run(2, body)) == ["[2000.]"] * 2


def test_an_instance_without_others_starts_what_it_likes() -> None:
    body = f"""
    {CHILD}
    popdist.init()
    start()
    """

    assert outputs(run_alone(body)) == ["[1000.]"]


@pytest.mark.parametrize("opened", [0, 20])
def test_groups_can_be_made_after_another_one_was_closed(opened: int) -> None:
    body = f"""
    popdist.replica_group().close()
    # They take the numbers of what is closed.
    files = [open("/dev/null") for _ in range({opened})]
    popdist.collectives.barrier()
    print("met")
    """

    assert outputs(run(2, body)) == ["met"] * 2


def test_a_closed_view_leaves_others_of_the_same_instances_open() -> None:
    body = """
    kept = popdist.replica_group()
    with popdist.instance_group() as group:
        print(group.all_reduce(np.ones(1)))
    for call in (group.all_reduce, kept.all_reduce, popdist.replica_group().all_reduce):
        try:
            print(call(np.ones((1, 1))))
        except popdist.GroupUnusableError:
            print("closed")
    """

    assert outputs(run(2, body)) == ["[2.]\nclosed\n[[2.]]\n[[2.]]"] * 2


def test_a_group_of_which_all_views_are_closed_is_replaced_at_the_next_request() -> (
    None
):
    body = """
    files = []
    for _ in range(3):
        with popdist.instance_group() as group:
            print(group.all_reduce(np.ones(1)))
        files.append(len(os.listdir("/proc/self/fd")))
    print(group.pidfds, files[2] - files[0])
    """

    ended = run(2, body, {"POPDIST_LOG_LEVEL": "debug"})

    assert [one.out for one in ended] == ["[2.]\n[2.]\n[2.]\n{} 0\n"] * 2
    assert [one.err for one in ended] == [
        f"popdist: instance {i}: reductions by algorithm: 3 oneshot.\n" for i in (0, 1)
    ]


def test_init_keeps_the_jobs_group_open_whatever_is_closed() -> None:
    body = """
    popdist.init()
    popdist.instance_group().close()
    # No other instance requests the group again, so this would wait if it were gone.
    if rank == 0:
        print(popdist.instance_group().pidfds.keys())
    """

    assert outputs(run(2, body)) == ["dict_keys([1])", ""]


def test_threads_that_come_first_together_make_one_group() -> None:
    body = """
    groups = []
    threads = [
        threading.Thread(target=lambda: groups.append(popdist.instance_group()))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(len(groups), len({id(group._endpoint) for group in groups}))
    """

    assert outputs(run(2, body)) == ["8 1"] * 2


def test_a_call_under_way_does_not_keep_a_process_from_ending() -> None:
    body = """
    popdist.init()
    collectives.barrier("both")
    if rank == 1:
        collectives.allReduceSum(np.ones(1), "never", async_op=True)
        time.sleep(0.2)
        sys.exit(3)
    try:
        popdist.replica_group().barrier()
    except popdist.PeerLostError as error:
        print(error.instances)
    """

    ended = run(2, body)

    assert [one.code for one in ended] == [0, 3]
    assert ended[0].out == "(1,)\n"


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_the_first_named_call_misses_one_that_has_died_since_init(victim: int) -> None:
    body = f"""
    popdist.init()
    if rank == {victim}:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        collectives.allReduceSum(np.ones(1), "w")
    except popdist.PeerLostError as error:
        print({victim} in error.instances, flush=True)
        # Stays, so that no other instance is missed.
        time.sleep(1)
    """

    ended = run(3, body, {"POPDIST_TIMEOUT": "200"})

    assert ended.pop(victim).code == -9
    assert outputs(ended) == ["True"] * 2


@pytest.mark.parametrize("victim", [1, 2])
@pytest.mark.parametrize(
    "first",
    ["popdist.replica_group", "lambda: collectives.allReduceSum(np.ones(1), 'w')"],
    ids=["group", "named"],
)
def test_a_first_call_among_some_misses_one_that_has_died_since_init(
    first: str, victim: int
) -> None:
    body = f"""
    popdist.init()
    if rank == {victim}:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        popdist.execute_on_instances({{1, 2}}, {first})
    except popdist.PeerLostError as error:
        print(error.instances, error)
    """
    words = (
        f"({victim},) Instance {victim} ended before it could join the group of "
        "instances 1 and 2. Look above for its last output."
    )

    ended = run(3, body, {"POPDIST_TIMEOUT": "200"})

    assert ended.pop(victim).code == -9
    assert outputs(ended) == ["", words]


def test_a_group_of_some_names_its_instances_while_they_meet() -> None:
    body = """
    if rank == 1:
        import itertools
        from popdist.engine.meet import deadlines
        # Half a second passes from each look at the clock to the next one, so that the
        # report comes before the end on a busy machine, too.
        deadlines.monotonic = itertools.count(0, 0.5).__next__
        try:
            popdist.execute_on_instances({1, 2}, popdist.replica_group)
        except popdist.CollectiveTimeoutError as error:
            print(error)
    """

    ended = run(3, body, {"POPDIST_TIMEOUT": "4", "POPDIST_STALL_TIMEOUT": "0.2"})

    assert re.match(r"popdist: instance 1 has waited [\d.]+ s ", ended[1].err)
    told, *stacks = ended[1].err.splitlines(keepends=True)
    assert told.endswith(
        " s for instance 2 to join the group of instances 1 and 2, and gives up after "
        "4 s.\n"
    )
    assert re.fullmatch(STACKS, "".join(stacks))
    assert ended[1].out == (
        "Instance 1 has waited 4 s for instance 2 to join the group of instances 1 and "
        "2. Look above for their last output. If they were only slow, raise "
        "POPDIST_TIMEOUT.\n"
    )


def test_the_algorithms_that_ran_are_reported_once_at_the_end_on_request() -> None:
    body = """
    collectives.allReduceSum(np.ones(1))
    if rank == 0:
        popdist.init()
        popdist.finalizeBackend()
    else:
        # A thread that is left: the groups stay open until the process is gone.
        threading.Thread(target=time.sleep, args=[60], daemon=True).start()
        popdist.init()
    """

    ended = run(2, body, {"POPDIST_LOG_LEVEL": "debug"})

    assert [one.err for one in ended] == [
        f"popdist: instance {i}: reductions by algorithm: 1 oneshot.\n" for i in (0, 1)
    ]


def test_a_program_without_reductions_says_so() -> None:
    ended = run(2, "popdist.init()", {"POPDIST_LOG_LEVEL": "debug"})

    assert [one.err for one in ended] == [
        f"popdist: instance {i}: reductions by algorithm: none.\n" for i in (0, 1)
    ]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (None, "None"),
        (Change("added", "Instance 2 was started again."), "None"),
        (
            Change(LOST, "Instance 1 has ended."),
            "Instance 1 has ended. The job re-forms.",
        ),
    ],
)
def test_a_meeting_is_over_if_poprun_tells_of_a_loss(
    monkeypatch: pytest.MonkeyPatch, change: Change | None, sentence: str
) -> None:
    why_over = session.Session().why_over()
    monkeypatch.setattr(session.GENERATIONS, "pending", lambda: change)

    assert str(why_over()) == sentence


@pytest.mark.parametrize(
    ("environ", "can_reform", "limit"),
    [
        # The other launcher may not have started that host yet.
        ({}, False, inf),
        ({"POPDIST_CONTROL": "@name/key"}, False, 30.0),
        ({"POPDIST_CONTROL": "@name/key"}, True, 5.0),
    ],
)
def test_silence_of_instance_0_is_a_loss_where_its_host_is_up(
    environ: dict[str, str],
    can_reform: bool,
    limit: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = session.Session()
    monkeypatch.setattr(own, "environ", environ)
    connection = object() if can_reform else None
    monkeypatch.setattr(session.GENERATIONS, "_connection", connection)

    assert own._silence_limit() == limit
