"""Instances re-form among those that are left, and those that join."""

import json
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from popdist import generations
from poprun.wire import protocol
from tests.elastic_jobs import Coordinator, wait_until
from tests.jobs import outputs, run_alone

# Adds up each member's index in the launcher until the member is told to end. Member 1
# of the first generation dies in the middle of it.
BODY = """
from popdist import elastic
index = int(os.environ["TEST_INDEX"])
assert not elastic.refusal(), elastic.refusal()

def total():
    return popdist.instance_group().all_reduce(np.array([1.0, index])).tolist()

print(elastic.generation(), *total())
if index == 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    while True:
        total()
except popdist.PeerLostError as error:
    print(error.instances)
elastic.reform()
print(elastic.generation(), popdist.getInstanceIndex(), *total())
"""


def test_the_instances_that_are_left_go_on_as_the_members(tmp_path: Path) -> None:
    with Coordinator(tmp_path, [3], BODY) as job:
        ended = job.finish()

    assert [one.code for one in ended] == [0, -9, 0], ended
    assert [one.out.splitlines() for one in ended] == [
        ["0 3.0 3.0", "(1,)", "1 0 2.0 2.0"],
        ["0 3.0 3.0"],
        ["0 3.0 3.0", "(1,)", "1 1 2.0 2.0"],
    ]
    assert [one.err for one in ended] == ["", "", ""]


def test_traces_name_instances_by_the_numbers_that_poprun_shows(
    tmp_path: Path,
) -> None:
    traced = {"POPDIST_TRACE": str(tmp_path)}
    with Coordinator(tmp_path, [3], BODY, environ=traced) as job:
        job.finish()

    [notes] = tmp_path.glob("2-*.notes")
    kinds = [json.loads(line) for line in notes.read_text().splitlines()]
    assert [note["rank"] for note in kinds if note["kind"] == "process"] == [2]
    members = [note["members"] for note in kinds if note["kind"] == "group"]
    assert members == [[0, 1, 2], [0, 2]]


def test_an_instance_that_is_added_joins_at_the_next_commit(tmp_path: Path) -> None:
    body = """
    from popdist import elastic
    state = elastic.State(steps=0, weights=np.zeros(100_000))

    @elastic.run
    def train(state):
        group = popdist.instance_group()
        while state.steps < 50 or elastic.generation() < 2:
            state.weights = state.weights + group.all_reduce(np.ones(100_000))
            state.steps += 1
            state.commit()
        return group.size

    size = train(state)
    print(elastic.generation(), size, popdist.getInstanceIndex(), state.steps,
          state.weights.min() == state.weights.max(), state.weights.sum())
    """
    with Coordinator(tmp_path, [3], body) as job:
        job.kill(2)
        wait_until(lambda: job.generation == 1)
        job.add(2)
        ended = job.finish()

    assert [one.code for one in ended] == [0, 0, -9, 0], ended
    assert ended[2].out == ""
    words = [ended[process].out.split() for process in (0, 1, 3)]
    assert [line[:3] for line in words] == [
        ["2", "3", "0"],
        ["2", "3", "1"],
        ["2", "3", "2"],
    ]
    assert [line[3:] for line in words] == [words[0][3:]] * 3
    assert words[0][4] == "True"


def test_without_poprun_a_sentence_says_so() -> None:
    body = """
    from popdist import elastic
    print(elastic.generation(), repr(elastic.members_changed()))
    try:
        elastic.reform()
    except popdist.ElasticError as error:
        print(error)
    """

    assert outputs(run_alone(body)) == [
        "0 ''\npoprun has not started this process, so its job cannot re-form. Start "
        "it with poprun, --mpirun local and --min-instances."
    ]


def test_a_refusal_is_the_sentence_of_poprun(tmp_path: Path) -> None:
    body = """
    from popdist import elastic
    try:
        elastic.reform()
    except popdist.ElasticError as error:
        print(error)
    print(popdist.instance_group().all_reduce(np.ones(1)).tolist())
    """
    with Coordinator(tmp_path, [2], body, refusal="MPI has started it.") as job:
        ended = job.finish()

    assert [one.out for one in ended] == ["MPI has started it.\n[2.0]\n"] * 2, ended


def test_a_call_after_a_refusal_does_not_promise_new_groups(tmp_path: Path) -> None:
    body = """
    from popdist import elastic
    assert not elastic.refusal()
    group = popdist.instance_group()
    group.barrier()
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        group.barrier()
    except popdist.PeerLostError:
        try:
            elastic.reform()
        except popdist.ElasticError as error:
            print(error)
    try:
        popdist.instance_group()
    except popdist.GroupUnusableError as error:
        print(error)
    """
    with Coordinator(tmp_path, [2], body, least=2) as job:
        ended = job.finish()

    assert ended[0].out == (
        "Only 1 instance of the job is left, but it needs at least 2 instances: see "
        "--min-instances and --nnodes.\n"
        "This process has left its groups. It has new ones when "
        "popdist.elastic.reform() returns, and none after an error of reform().\n"
    ), ended


def test_instances_on_several_hosts_connect_anew(tmp_path: Path) -> None:
    with Coordinator(tmp_path, [2, 2, 1], BODY) as job:
        ended = job.finish()

    assert [one.code for one in ended] == [0, -9, 0, 0, 0], ended
    assert [one.out.splitlines()[-1] for one in ended] == [
        "1 0 4.0 9.0",
        "0 5.0 10.0",
        "1 1 4.0 9.0",
        "1 2 4.0 9.0",
        "1 3 4.0 9.0",
    ]
    assert [one.err for one in ended] == [""] * 5


def test_members_re_form_if_the_first_host_does_not_answer_at_the_start(
    tmp_path: Path,
) -> None:
    body = """
    from popdist import elastic
    from popdist.engine.hosts.tcp import handshake, links
    handshake.SILENT_SECONDS = 0.2
    connected = links.TcpLinks._connected

    def connect(*args):
        if elastic.generation() == 0:
            time.sleep(0.2)
            raise TimeoutError
        return connected(*args)

    links.TcpLinks._connected = connect

    @elastic.run
    def train(state):
        return popdist.instance_group().all_reduce(np.ones(1)).tolist()

    print(train(elastic.State()), elastic.generation())
    """
    with Coordinator(tmp_path, [1, 2], body) as job:
        ended = job.finish()

    assert [one.out for one in ended] == ["[3.0] 1\n"] * 3, ended
    assert job.state.silent_hosts == {"host-0"}


def test_the_messages_are_those_of_poprun() -> None:
    names = ("ELASTIC", "REFORM", "ELASTIC_KNOWN", "MEMBERS_CHANGE")
    for name in (*names, "REFORMED", "REFORM_REFUSED", "LEFT"):
        assert getattr(generations, name) == getattr(protocol, name)


# Adds up until a member is lost, re-forms, and adds up until a file is there.
STOPPED = """
from popdist import elastic
assert not elastic.refusal()

def add(is_over=lambda: False):
    while True:
        values = np.array([1.0, is_over()])
        size, over = popdist.instance_group().all_reduce(values).tolist()
        if over:
            return int(size)

print("begins", flush=True)
try:
    add()
except popdist.PeerLostError:
    print("lost", flush=True)
elastic.reform()
print(elastic.generation(), flush=True)
print(add(lambda: os.path.exists(OVER)))
"""


@pytest.mark.parametrize("per_host", [(3,), (1, 1, 1)])
def test_an_instance_that_stood_still_meets_the_others_when_it_continues(
    tmp_path: Path, per_host: Sequence[int]
) -> None:
    over = tmp_path / "over"
    body = STOPPED.replace("OVER", repr(str(over)))
    with Coordinator(tmp_path, per_host, body) as job:
        wait_until(lambda: all("begins" in job.output(i) for i in range(3)))
        job.kill(2, signal.SIGSTOP)
        job.kill(1)
        wait_until(lambda: "lost" in job.output(0))
        time.sleep(1.0)
        assert job.generation == 0
        job.kill(2, signal.SIGCONT)
        wait_until(lambda: "1" in job.output(0))
        over.touch()
        ended = job.finish()

    assert ended[0].out == ended[2].out == "begins\nlost\n1\n2\n", ended


@pytest.mark.parametrize("per_host", [(3,), (1, 1, 1)])
def test_a_lost_instance_that_continues_takes_no_part_in_the_next_generation(
    tmp_path: Path, per_host: Sequence[int]
) -> None:
    over, held = tmp_path / "over", tmp_path / "held"
    body = STOPPED.replace("OVER", repr(str(over)))
    if len(per_host) == 1:
        # Calls in shared memory detect the end of the process only. Instances that
        # poprun has lost while they live are on other hosts.
        held.touch()
        hold = f"while rank == 2 and os.path.exists({str(held)!r}): time.sleep(0.01)"
        body = body.replace("try:\n", f"{hold}\ntry:\n")
    with Coordinator(tmp_path, per_host, body) as job:
        wait_until(lambda: all("begins" in job.output(i) for i in range(3)))
        job.kill(2, signal.SIGSTOP)
        job.lose(2)
        wait_until(lambda: "1" in job.output(0))
        held.unlink(missing_ok=True)
        job.kill(2, signal.SIGCONT)
        wait_until(lambda: job.process(2).process.poll() is not None)
        over.touch()
        ended = job.finish()

    assert ended[0].out == ended[1].out == "begins\nlost\n1\n2\n", ended
    assert ended[2].out == "begins\nlost\n", ended
    assert ended[2].err.splitlines()[-1] == (
        "popdist.errors.ElasticError: The job cannot re-form any more, because poprun "
        "cannot be asked: it has ended, or does not know this job."
    )


def test_registered_communicators_and_old_groups_end_with_their_generation(
    tmp_path: Path,
) -> None:
    body = """
    from popdist import elastic
    popdist.init()
    popdist.registerCommunicator([0], "alone")
    old = popdist.instance_group()
    handles = [old.all_reduce(np.ones(3), async_op=True) for _ in range(2 - rank)]
    # Of several calls that do not end, only the first one has the reason.
    handles[0].wait()
    elastic.reform()
    for call in (lambda: collectives.barrier("b", "alone"), old.barrier):
        try:
            call()
        except (ValueError, popdist.PopdistError) as error:
            print(type(error).__name__)
    for handle in handles:
        try:
            handle.wait()
            print("done")
        except popdist.PeerLostError as error:
            print(error)
    popdist.init()
    print(collectives.allReduceSum(np.ones(2)).tolist())
    """
    with Coordinator(tmp_path, [2], body) as job:
        ended = job.finish()

    reason = (
        "An instance has left its groups because the members of the job change. Call "
        "popdist.elastic.reform(), and make new groups."
    )
    common = ["ValueError", "GroupUnusableError"]
    first, second = (one.out.splitlines() for one in ended)
    assert first[:2] == second[:2] == common, ended
    assert first[2] == second[2] == "done", ended
    # The second call of instance 0 has no counterpart.
    assert first[3] == reason
    assert first[4] == second[3] == "[2.0, 2.0]"


@pytest.mark.parametrize("call", ["sync", "commit", "sync(), state.commit"])
@pytest.mark.parametrize("is_known", [True, False])
def test_all_members_get_an_error_if_one_of_them_cannot_re_form(
    tmp_path: Path, call: str, is_known: bool
) -> None:
    body = f"""
    from popdist import elastic
    from popdist.generations import GENERATIONS
    if {is_known}:
        elastic.refusal()
    if rank == 1:
        GENERATIONS._end(OSError(0, "its socket is gone"))
    state = elastic.State(step=0)
    try:
        state.{call}()
    except popdist.ElasticError as error:
        print(error)
    print(popdist.instance_group().all_reduce(np.ones(1)).tolist())
    """
    with Coordinator(tmp_path, [2], body) as job:
        ended = job.finish()

    assert [one.out for one in ended] == [
        "Another instance of this job cannot re-form, and its error says why. All must "
        "be able to, so the job cannot go on.\n[2.0]\n",
        "The job cannot re-form any more, because poprun cannot be asked: its socket "
        "is gone.\n[2.0]\n",
    ], ended


@pytest.mark.parametrize(
    ("objects", "errors"),
    [
        pytest.param(
            "call=lambda: 0",
            [
                "PicklingError: Can't pickle <function <lambda> at 0x",
                "CollectiveAbortedError: Instance 0 failed in State.sync(), which",
            ],
            id="not-pickled",
        ),
        pytest.param(
            "**{('step', 'epoch')[rank]: 0}",
            [
                "",
                "MismatchError: This instance has a State of epoch, but instance 0 has "
                "one of step. Give the State the same names on all instances.",
            ],
            id="other-names",
        ),
    ],
)
def test_objects_that_cannot_be_sent_or_taken_are_an_error(
    tmp_path: Path, objects: str, errors: Sequence[str]
) -> None:
    body = f"""
    from popdist import elastic
    state = elastic.State({objects})
    try:
        state.sync()
    except Exception as error:
        print(f"{{type(error).__name__}}: {{error}}")
    """
    with Coordinator(tmp_path, [2], body) as job:
        ended = job.finish()

    assert [one.code for one in ended] == [0, 0], ended
    for one, error in zip(ended, errors, strict=True):
        assert one.out.startswith(error), ended


# Instance 1 dies, and the other one raises an error that does not name the loss.
UNNAMED = """
from popdist import elastic

@elastic.run
def train(state):
    popdist.instance_group().all_reduce(np.ones(1))
    if elastic.generation() == 0:
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        while not elastic.members_changed():
            time.sleep(0.01)
        raise ERROR
    return elastic.generation()

print(train(elastic.State(step=0)))
"""


def test_an_error_that_counts_as_a_loss_is_printed(tmp_path: Path) -> None:
    body = UNNAMED.replace("ERROR", "OSError('No space left on device')")
    with Coordinator(tmp_path, [2], body) as job:
        ended = job.finish()

    assert ended[0].out == "1\n", ended
    first, *traceback = ended[0].err.splitlines()
    assert first == (
        "The function is called again with the last commit, because this error may "
        "follow from the loss of an instance: poprun has told of one. If it is an "
        "error of the program, correct it."
    )
    assert traceback[-1] == "OSError: No space left on device"


@pytest.mark.parametrize("cause", ["MismatchError", "ElasticError"])
def test_errors_of_checks_count_as_no_loss(tmp_path: Path, cause: str) -> None:
    error = f"RuntimeError('It failed.') from popdist.{cause}('They differ.')"
    with Coordinator(tmp_path, [2], UNNAMED.replace("ERROR", error)) as job:
        ended = job.finish()

    assert ended[0].code == 1, ended
    assert ended[0].err.splitlines()[-1] == "RuntimeError: It failed."


def test_an_error_of_all_members_is_no_loss_of_those_that_have_it_first(
    tmp_path: Path,
) -> None:
    body = f"""
    from pathlib import Path
    from popdist import elastic
    from popdist.elastic import repeating
    folder = Path({str(tmp_path)!r})

    def sleep(seconds):
        # Until all have found that poprun tells of no loss, however late they are.
        (folder / f"decided-{{rank}}").touch()
        while len(list(folder.glob("decided-*"))) < 3:
            time.sleep(0.01)

    repeating.sleep = sleep

    @elastic.run
    def train(state):
        popdist.instance_group().all_reduce(np.ones(1))
        time.sleep(0.5 * rank)
        raise ValueError("The loss is NaN.")

    train(elastic.State(step=0))
    """
    with Coordinator(tmp_path, [3], body) as job:
        ended = job.finish()

    assert [one.code for one in ended] == [1] * 3, ended
    errors = [one.err for one in ended]
    assert ["called again" in error for error in errors] == [False] * 3, ended


def test_threads_that_re_form_at_the_same_time_begin_one_generation(
    tmp_path: Path,
) -> None:
    body = f"""
    from popdist import elastic
    from popdist.generations import GENERATIONS
    both_wait = {str(tmp_path / "both")!r}

    class Watched:
        def __init__(self):
            self.lock, self.calls = threading.Lock(), threading.Semaphore(0)

        def __enter__(self):
            self.calls.release()
            self.lock.acquire()

        def __exit__(self, *_):
            self.lock.release()

    if rank == 0:
        GENERATIONS.reforming = Watched()
        threads = [threading.Thread(target=elastic.reform) for _ in range(2)]
        for thread in threads:
            thread.start()
        for _ in threads:
            GENERATIONS.reforming.calls.acquire()
        open(both_wait, "w").close()
        for thread in threads:
            thread.join()
    else:
        while not os.path.exists(both_wait):
            time.sleep(0.01)
        elastic.reform()
    print(popdist.instance_group().all_reduce(np.ones(1)), elastic.generation())
    """
    with Coordinator(tmp_path, [2], body) as job:
        ended = job.finish()

    assert [one.out for one in ended] == ["[2.] 1\n"] * 2, ended


def test_re_forming_in_the_handler_of_a_signal_meanwhile_is_an_error(
    tmp_path: Path,
) -> None:
    body = """
    from popdist import elastic
    from popdist.session import STATE

    def handle(*_):
        try:
            elastic.reform()
        except RuntimeError as error:
            print(error)

    signal.signal(signal.SIGUSR1, handle)
    leave = STATE.leave

    def leave_with_signal():
        signal.raise_signal(signal.SIGUSR1)
        return leave()

    STATE.leave = leave_with_signal
    for _ in range(2):
        elastic.reform()
    print(popdist.instance_group().all_reduce(np.ones(1)), elastic.generation())
    """
    with Coordinator(tmp_path, [2], body) as job:
        ended = job.finish()

    sentence = (
        "popdist.elastic.reform() was called while the same thread re-forms already, "
        "such as by the handler of a signal. Let the handler set a variable, and call "
        "reform() later.\n"
    )
    assert [one.out for one in ended] == [f"{sentence * 2}[2.] 2\n"] * 2, ended


def test_an_instance_on_a_host_that_leaves_ends_without_a_traceback(
    tmp_path: Path,
) -> None:
    body = """
    from popdist import elastic

    @elastic.run
    def train(state):
        size = popdist.instance_group().size
        while size == 3:
            time.sleep(0.01)
            state.commit()
        return size

    state = elastic.State()
    try:
        print(train(state))
    except elastic.ElasticError as error:
        print(type(error).__name__)
        raise
    """
    with Coordinator(tmp_path, [1, 1, 1], body) as job:
        wait_until(lambda: job.state.able == {0, 1, 2})
        job.let_leave(1)
        ended = job.finish()

    assert [one.out for one in ended] == ["2\n", "LeftJobError\n", "2\n"], ended
    assert [one.code for one in ended] == [0, 1, 0]
    left = (
        "The host host-1 is named no longer, so instance 1 (host-1) has left the job."
    )
    assert [one.err for one in ended] == ["", f"{left}\n", ""]


def test_a_host_joins_and_another_leaves_at_one_commit(tmp_path: Path) -> None:
    body = """
    from popdist import elastic

    @elastic.run
    def train(state):
        group = popdist.instance_group()
        print(elastic.generation(), group.size, state.step)
        while elastic.generation() < 2:
            state.step += int(group.all_reduce(np.ones(1))[0])
            state.commit()
            time.sleep(0.01)
        return state.step

    state = elastic.State(step=0)
    print("step", train(state))
    """
    with Coordinator(tmp_path, [1, 1, 1], body, least=2, most=2) as job:
        wait_until(lambda: job.state.able == {0, 1, 2})
        job.kill(2)
        wait_until(lambda: job.generation == 1)
        job.add(2, with_host=True)
        # It has asked to join, and waits for a place.
        wait_until(lambda: 2 in job.state.asked)
        assert job.generation == 1
        job.let_leave(1)
        ended = job.finish()

    assert job.state.members == (0, 2)
    assert [one.code for one in ended] == [0, 1, -signal.SIGKILL, 0], ended
    assert "instance 1 (host-1) has left the job" in ended[1].err
    first, joined = ended[0].out.splitlines(), ended[3].out.splitlines()
    # It has the state of the commit before.
    assert first[-2:] == joined
    assert first[-2].startswith("2 2 ")
    assert int(first[-1].split()[1]) > 0


def test_an_instance_that_never_had_the_state_does_not_begin_from_zero(
    tmp_path: Path,
) -> None:
    body = """
    from popdist import elastic
    index = int(os.environ["TEST_INDEX"])

    class State(elastic.State):
        def sync(self):
            if index == 0 and elastic.generation() == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            super().sync()

    @elastic.run
    def train(state):
        while True:
            popdist.instance_group().all_reduce(np.ones(1))
            state.commit()

    train(State(step=0))
    """
    with Coordinator(tmp_path, [2], body) as job:
        job.kill(1)
        wait_until(lambda: job.generation == 1)
        job.add(1)
        ended = job.finish()

    assert [one.code for one in ended] == [-9, -9, 1], ended
    assert ended[2].err.splitlines()[-1] == (
        "popdist.errors.ElasticError: All instances that had the state of this job "
        "have ended before those that joined them later received it. Start the job "
        "again from a checkpoint. With --max-restarts, poprun starts it again."
    )


def test_instances_that_joined_and_had_the_state_may_make_another_one(
    tmp_path: Path,
) -> None:
    body = """
    from popdist import elastic

    @elastic.run
    def train(state):
        print("members", elastic.generation(), flush=True)
        while elastic.generation() < 3:
            popdist.instance_group().all_reduce(np.ones(1))
            state.commit()

    train(elastic.State(step=0))
    second = elastic.State(step=0)
    second.sync()
    print(second)
    """
    with Coordinator(tmp_path, [2], body) as job:
        wait_until(lambda: all("members 0" in job.output(i) for i in range(2)))
        job.kill(1)
        wait_until(lambda: job.generation == 1)
        job.add(1)
        wait_until(lambda: "members 2" in job.output(1))
        job.kill(0)
        ended = job.finish()

    assert [one.code for one in ended] == [-9, -9, 0], ended
    assert ended[2].out == "members 2\nmembers 3\n<State of step: commit 0>\n"


def test_values_come_from_members_that_had_the_state_even_without_a_commit(
    tmp_path: Path,
) -> None:
    over = tmp_path / "over"
    body = f"""
    from popdist import elastic

    @elastic.run
    def train(state):
        print(rank, state.step, flush=True)

    def second_phase():
        elastic.State(step=0).sync()
        state = elastic.State(step=7)
        print("begins", flush=True)
        while not os.path.exists({str(over)!r}):
            time.sleep(0.01)
        return state

    joins = "POPDIST_ELASTIC_JOINS" in os.environ
    train(elastic.State(step=0) if joins else second_phase())
    """
    with Coordinator(tmp_path, [2], body) as job:
        wait_until(lambda: all("begins" in job.output(i) for i in range(2)))
        job.kill(0)
        job.add(0)
        wait_until(lambda: 0 in job.state.asked)
        over.touch()
        ended = job.finish()

    assert [one.out for one in ended[1:]] == ["begins\n1 7\n", "0 7\n"], ended


def test_a_child_process_does_not_take_the_place_of_its_parent_that_has_re_formed(
    tmp_path: Path,
) -> None:
    body = """
    import subprocess
    from popdist import elastic
    popdist.instance_group()
    elastic.reform()
    popdist.instance_group().barrier()
    if rank == 0:
        child = subprocess.run(
            [sys.executable, "-c", "import popdist; popdist.instance_group()"],
            stderr=subprocess.PIPE,
            text=True,
        )
        print(child.stderr.splitlines()[-1].replace(str(os.getpid()), "PID", 1))
    popdist.instance_group().barrier()
    """
    with Coordinator(tmp_path, [2], body) as job:
        ended = job.finish()

    assert ended[0].out.startswith(
        "popdist.errors.GroupUnusableError: Process PID has joined its groups as "
        "instance 0 and takes part in collectives itself"
    ), ended


def test_a_child_of_instance_0_does_not_listen_in_its_place(tmp_path: Path) -> None:
    body = """
    import socket
    from popdist import elastic

    def listening():
        count = 0
        for fd in map(int, os.listdir("/proc/self/fd")):
            try:
                with socket.socket(fileno=os.dup(fd)) as sock:
                    option = socket.SOL_SOCKET, socket.SO_ACCEPTCONN
                    count += sock.getsockopt(*option)
            except OSError:
                continue
        return count

    elastic.reform()
    if rank == 0:
        print(listening(), flush=True)
        if os.fork() == 0:
            print(listening(), flush=True)
            os._exit(0)
        os.wait()
    print(popdist.instance_group().all_reduce(np.ones(1)).tolist())
    """
    with Coordinator(tmp_path, [1, 1], body) as job:
        ended = job.finish()

    assert [one.out for one in ended] == ["1\n0\n[2.0]\n", "[2.0]\n"], ended
