"""How a group over several hosts ends: mismatches, timeouts, deaths and exits."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

import pytest

from tests.conftest import POPRUN, ROOT
from tests.host_jobs import DEATH, TCP, run

pytestmark = pytest.mark.mpi

HOST = os.uname().nodename
SUM = "all_reduce (sum, oneshot)"


def lines_of(instances: Sequence[str]) -> list[list[str]]:
    return [text.replace(f" on {HOST}", "").splitlines() for text in instances]


def test_calls_that_do_not_match_are_named_with_the_instance_and_its_host(
    hydra: str, tmp_path: Path
) -> None:
    body = """
    group = popdist.instance_group()
    fail(lambda: group.all_reduce(np.ones(3 if rank == ODD else 10, np.float32)))
    """

    on_one_host, on_two = (
        lines_of(run(hydra, (2, 1), body.replace("ODD", odd), tmp_path).outputs)
        for odd in "12"
    )

    def text(finder: int, own: int, other: int, theirs: int) -> list[str]:
        return [
            "MismatchError: Tensor layouts did not match on all instances: instance "
            f"{finder} came to {SUM} of {own} float32, but instance {other} came to "
            f"{SUM} of {theirs} float32. All instances must make the same calls in the "
            "same order."
        ]

    assert on_one_host in ([text(0, 10, 1, 3)] * 3, [text(1, 3, 0, 10)] * 3)
    # Each host's leader finds it, unless the other one's message comes first.
    for error in on_two:
        assert error in (text(0, 10, 2, 3), text(2, 3, 0, 10))


def test_a_group_that_cannot_be_made_for_an_error_of_the_links_says_which(
    tmp_path: Path,
) -> None:
    body = """
    import errno
    from popdist.engine.hosts.links import LinkError
    from popdist.engine.hosts.tcp.links import TcpLinks
    def refuse(*_):
        raise LinkError(errno.EMFILE)
    if rank == 1:
        TcpLinks.post = refuse
    fail(lambda: popdist.instance_group())
    if rank == 1:
        sys.stdout.flush()
        os._exit(0)
    """

    first, second = lines_of(run(TCP, (1, 1), body, tmp_path).outputs)

    assert second == [
        "ArenaError: Instance 1 could not reach another host to make the group of "
        "instances 0 and 1: Too many open files."
    ]
    assert first[0].startswith("PeerLostError(1,): Instance 1 ended")


def test_an_error_of_the_links_after_a_death_names_the_dead_instance(
    tmp_path: Path,
) -> None:
    body = """
    import errno
    from popdist.engine.hosts import meeting
    from popdist.engine.hosts.links import LinkError
    from popdist.engine.hosts.tcp.links import TcpLinks
    def refuse(links, *_):
        while not links._core.failed():
            links.take()
        raise LinkError(errno.EMFILE)
    if rank == 1:
        TcpLinks.post = refuse
    else:
        # It dies once its links have been started.
        meeting.ShmMember = lambda *_: os._exit(0)
    fail(lambda: popdist.instance_group())
    """

    _, second = lines_of(run(TCP, (1, 1), body, tmp_path).outputs)

    assert second == [
        "PeerLostError(0,): Instance 0 ended or gave up while the instances met. Look "
        "above for its last output."
    ]


def test_an_instance_of_another_host_with_another_popdist_is_refused(
    hydra: str, tmp_path: Path
) -> None:
    body = """
    popdist.__version__ = "9.9" if rank == 2 else "9.8"
    fail(lambda: popdist.instance_group())
    """

    outputs = lines_of(run(hydra, (2, 1), body, tmp_path).outputs)

    assert (
        outputs
        == [
            [
                "MismatchError: Instance 0 has popdist 9.8, but instance 2 has popdist "
                "9.9. Install the same version on all hosts."
            ]
        ]
        * 3
    )


def test_a_mismatch_is_told_at_once_where_the_missing_instance_has_died(
    hydra: str, tmp_path: Path
) -> None:
    # Instance 0 learns of the death in the middle of the meeting. If it waited for
    # instance 1 all the same, the job would last an hour.
    body = """
    from types import SimpleNamespace
    from popdist.engine.hosts import meeting
    from popdist.engine.hosts.links_thread import started
    from popdist.session import STATE
    popdist.instance_group().barrier()
    meeting._LATE_SECONDS = 3600.0
    check = meeting._check_alike

    def check_and_learn(*arguments):
        try:
            check(*arguments)
        finally:
            started().note_death(1)

    if rank == 0:
        meeting._check_alike = check_and_learn
    if rank == 2:
        core = {**vars(meeting._core), "arena_layout": lambda: 7}
        meeting._core = SimpleNamespace(**core)
    if rank != 1:
        fail(lambda: STATE.group("test", (0, 1, 2)))
    # mpirun ends the others once one ends as after a death.
    while not all(os.path.getsize(f"{sys.argv[1]}.{n}.out") for n in (0, 2)):
        time.sleep(0.01)
    """

    instances = run(hydra, (1, 1, 1), body, tmp_path).instances
    first, _, last = lines_of([one.out for one in instances])

    assert first == last
    assert re.fullmatch(
        "MismatchError: Instance 0 has a group of 3 members and layout [0-9a-f]{16}, "
        "but instance 2 one of 3 and layout 0{15}7. .*",
        *first,
    )


def test_different_operations_on_two_hosts_are_a_mismatch(
    links: str, tmp_path: Path
) -> None:
    body = """
    group = popdist.instance_group()
    x = np.ones(10, np.float32)
    fail(lambda: group.broadcast(x, 1) if rank == 2 else group.all_reduce(x))
    fail(lambda: group.barrier())
    """

    ran = run(links, (2, 1), body, tmp_path)

    for error, after in lines_of(ran.outputs):
        assert "broadcast of 10 float32 with root on instance 1" in error
        assert f"{SUM} of 10 float32" in error
        assert after.startswith("GroupUnusableError: This group ended in ")


def test_a_message_of_another_type_ends_the_group(links: str, tmp_path: Path) -> None:
    body = """
    group = popdist.instance_group()
    x = np.ones(10, np.float32)
    if rank == 0:
        group.send(x, 1)
    if rank == 1:
        fail(lambda: group.recv(np.ones(10), 0))
    fail(lambda: group.barrier())
    """

    ran = run(links, (1, 1), body, tmp_path)

    assert lines_of(ran.outputs)[1][0] == (
        "MismatchError: Tensor layouts did not match on all instances: instance 1 came "
        "to recv of 10 float64 from instance 0, but instance 0 came to send of 10 "
        "float32 to instance 1. All instances must make the same calls in the same "
        "order."
    )


def test_an_instance_of_another_host_that_does_not_come_is_named_in_time(
    links: str, tmp_path: Path
) -> None:
    body = """
    group = popdist.instance_group()
    group.barrier()
    group.set_timeout(4)
    if rank == 2:
        # Until the others have given up.
        while not all(os.path.exists(f"{sys.argv[1]}.{one}.done") for one in (0, 1)):
            time.sleep(0.01)
    else:
        fail(lambda: group.all_reduce(np.ones(3)))
        open(f"{sys.argv[1]}.{rank}.done", "w").close()
    """

    ran = run(links, (2, 1), body, tmp_path)

    text = (
        f"CollectiveTimeoutError: Instance 2 did not take its part in {SUM} of 3 "
        "float64 within 4 s, so instance 0 gave up. Look at what it does instead; if "
        "it was only slow, raise POPDIST_TIMEOUT."
    )
    assert lines_of(ran.outputs) == [[text], [text], []]


def test_a_long_wait_for_another_host_is_reported_once(
    links: str, tmp_path: Path
) -> None:
    body = """
    os.environ["POPDIST_STALL_TIMEOUT"] = "0.3"
    group = popdist.instance_group()
    group.all_reduce(np.ones(1))
    if rank == 1:
        while "in barrier" not in open(f"{sys.argv[1]}.0.err").read():
            time.sleep(0.01)
    group.barrier()
    """

    ran = run(links, (1, 1), body, tmp_path)

    assert ran.code == 0
    # The calls before may take long, too.
    [report] = re.findall("popdist: instance.*in barrier.*", ran.instances[0].err)
    assert re.fullmatch(
        rf"popdist: instance 0 on {HOST} has waited \d+ s for instance 1 on {HOST} in "
        r"barrier\.",
        report,
    )


def test_a_member_behind_the_leader_of_another_host_is_named_everywhere(
    links: str, tmp_path: Path
) -> None:
    body = """
    from poprun.host.calls_in_progress import read_calls
    os.environ["POPDIST_STALL_TIMEOUT"] = "2"
    group = popdist.instance_group()
    leader = f"{sys.argv[1]}.leader"
    if rank == 2:
        with open(leader, "w") as file:
            file.write(str(os.getpid()))
    group.barrier()
    group.set_timeout(6)
    if rank == 0:
        # The report names the leader of the other host, if it comes late.
        with open(leader) as file:
            pid = int(file.read())
        while not any(c.num_calls == 2 and c.waits_since for c in read_calls(pid)):
            time.sleep(0.01)
    if rank == 3:
        while not all(os.path.exists(f"{sys.argv[1]}.{i}.done") for i in range(3)):
            time.sleep(0.01)
    else:
        fail(lambda: group.all_reduce(np.ones(3)))
        open(f"{sys.argv[1]}.{rank}.done", "w").close()
    """

    ran = run(links, (2, 2), body, tmp_path)

    assert ran.code == 0
    for [error] in lines_of([one.out for one in ran.instances[:3]]):
        assert error.startswith("CollectiveTimeoutError: Instance 3 did not take its ")
    assert f"instance 0 on {HOST} has waited" in ran.instances[0].err
    assert f"for instance 3 on {HOST} in {SUM}" in ran.instances[0].err


def test_an_abort_ends_the_group_on_all_hosts(links: str, tmp_path: Path) -> None:
    body = """
    group = popdist.instance_group()
    group.barrier()
    if rank == 2:
        group.abort("It is enough.")
    fail(lambda: group.all_reduce(np.ones(3)))
    """

    ran = run(links, (2, 1), body, tmp_path)

    assert ran.outputs == ["CollectiveAbortedError: It is enough."] * 3


def test_one_that_closes_the_group_is_missed_on_the_other_host(
    links: str, tmp_path: Path
) -> None:
    body = """
    group = popdist.instance_group()
    group.all_reduce(np.ones(3))
    if rank == 2:
        group.close()
    else:
        fail(lambda: group.all_reduce(np.ones(3)))
    """

    ran = run(links, (2, 2), body, tmp_path)

    for own in (0, 1, 3):
        assert re.fullmatch(
            rf"PeerLostError\(2,\): Instance 2 on {HOST} has ended, or closed the "
            rf"group, while instance \d on {HOST} needed it for all_reduce .*",
            ran.outputs[own],
        )


@pytest.mark.parametrize("most_told", [64, 2])
def test_one_that_closes_the_group_sends_nothing_any_more(
    links: str, tmp_path: Path, most_told: int
) -> None:
    body = f"""
    from popdist.engine.hosts import layout
    layout._MOST_TOLD = {most_told}
    group = popdist.instance_group()
    group.barrier()
    if rank == 3:
        group.send(np.ones(3), 1)
        group.close()
        time.sleep(1)
    elif rank == 1:
        print(group.recv(np.zeros(3), 3))
        fail(lambda: group.recv(np.zeros(3), 3))
    """

    ran = run(links, (2, 2), body, tmp_path)

    message, error = ran.outputs[1].splitlines()
    assert message == "[1. 1. 1.]"
    assert error == (
        f"PeerLostError(3,): Instance 3 on {HOST} has ended, or closed the group, "
        f"while instance 1 on {HOST} needed it for recv of 3 float64 from instance 3 "
        f"on {HOST}. Look above for its last output."
    )


def test_instances_that_end_at_different_times_end_well(
    every_mpirun: str, tmp_path: Path
) -> None:
    body = """
    group = popdist.instance_group()
    group.all_reduce(np.ones(3))
    time.sleep(0.2 * rank)
    print("over")
    """

    assert run(every_mpirun, (2, 1), body, tmp_path).outputs == ["over"] * 3


def test_mpi_of_the_program_is_used_and_left_to_it(hydra: str, tmp_path: Path) -> None:
    body = """
    from mpi4py import MPI
    total = popdist.instance_group().all_reduce(np.ones(3))
    print(MPI.COMM_WORLD.allreduce(1), total[0], MPI.Is_finalized())
    """

    assert run(hydra, (2, 1), body, tmp_path).outputs == ["3 3.0 False"] * 3


def test_a_program_may_finalise_mpi_before_others_do(
    hydra: str, tmp_path: Path
) -> None:
    body = """
    from mpi4py import MPI
    popdist.instance_group().all_reduce(np.ones(3))
    if rank == 0:
        MPI.Finalize()
    print(MPI.Is_finalized())
    """

    ran = run(hydra, (2, 1), body, tmp_path)

    assert ran.outputs == ["True", "False", "False"]


def test_a_program_may_import_mpi4py_later(hydra: str, tmp_path: Path) -> None:
    body = """
    popdist.instance_group().barrier()
    import mpi4py
    from mpi4py import MPI
    print(MPI.COMM_WORLD.allreduce(1), mpi4py.rc.initialize, MPI.Query_thread() == 3)
    """

    assert run(hydra, (2, 1), body, tmp_path).outputs == ["3 True True"] * 3


def test_mpi_with_fewer_threads_is_refused_with_what_to_set(
    hydra: str, tmp_path: Path
) -> None:
    body = """
    import mpi4py
    mpi4py.rc.thread_level = "funneled"
    from mpi4py import MPI
    fail(lambda: popdist.instance_group().barrier())
    """

    assert (
        run(hydra, (1, 1), body, tmp_path).outputs
        == [
            "ArenaError: MPI was initialised without MPI_THREAD_MULTIPLE, but popdist, "
            "which reaches other hosts by it, calls it from several threads. Leave "
            'mpi4py.rc.thread_level at "multiple", or call MPI_Init_thread with that, '
            "or call popdist.init() first; or use an MPI that was built with it."
        ]
        * 2
    )


@pytest.mark.parametrize("victim", [0, 3])
def test_an_instance_that_exits_before_it_meets_the_others_is_named_on_all_hosts(
    every_mpirun: str, tmp_path: Path, victim: int
) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        'import os, sys; os.environ["POPDIST_INSTANCES_PER_HOST"] = "2,2"\n'
        'if os.environ["RANK"] == sys.argv[1]: sys.exit(3)\n'
        "import popdist; popdist.init()\n"
        "try: popdist.instance_group()\n"
        "except popdist.PeerLostError as error: print(*error.instances)\n"
    )

    ran = subprocess.run(
        [
            *(POPRUN, "--mpirun", every_mpirun, "-n", "4"),
            *("--offline-mode=yes", "--keep-going", sys.executable, str(script)),
            str(victim),
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )

    # Those that have caught the error end as well, and may be named to slower ones.
    named = [line.split() for line in ran.stdout.splitlines()]
    assert (ran.returncode, len(named)) == (3, 3), ran.stderr
    assert all(str(victim) in instances for instances in named), ran.stdout


@pytest.mark.parametrize(
    ("victim", "count"), [(0, 3), (1, 100_000), (3, 3), (3, 100_000)]
)
def test_the_death_of_an_instance_is_named_on_all_hosts(
    hydra: str, tmp_path: Path, victim: int, count: int
) -> None:
    script = tmp_path / "program.py"
    script.write_text(DEATH)

    ran = subprocess.run(
        [
            *(POPRUN, "--mpirun", hydra, "--num-instances", "4", "--num-replicas"),
            *("4", "--ipus-per-replica", "1", "--grace", "20", "--keep-going"),
            *(sys.executable, str(script), "2,2", str(victim), str(tmp_path)),
            str(count),
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )

    assert ran.returncode == 137
    for rank in {0, 1, 2, 3} - {victim}:
        _, lost, text = json.loads((tmp_path / str(rank)).read_text())
        assert lost == [victim], ran.stderr
        assert re.match(
            rf"Instance {victim} on {HOST} has ended, or closed the group, while "
            rf"instance \d on {HOST} needed it for all_reduce \(sum, ",
            text,
        )


def test_a_forked_child_that_ends_leaves_the_group_to_its_parent(
    links: str, tmp_path: Path
) -> None:
    body = """
    group = popdist.instance_group()
    group.barrier()
    child = os.fork()
    if child == 0:
        try:
            group.barrier()
        except PopdistError as error:
            sys.exit(type(error).__name__ != "GroupUnusableError")
    _, status = os.waitpid(child, 0)
    print(status, group.all_reduce(np.ones(3))[0])
    """

    assert run(links, (2, 1), body, tmp_path).outputs == ["0 3.0"] * 3


def test_one_that_only_closed_its_group_delays_no_end_of_another(
    hydra: str, tmp_path: Path
) -> None:
    body = """
    from popdist.engine.hosts import links_thread
    links_thread._LAST_SECONDS = 1000.0
    group = popdist.instance_group()
    group.barrier()
    if rank == 0:
        group.close()
        time.sleep(1000)
    group.barrier()
    """

    # hydra ends all when one has failed.
    ran = run(hydra, (1, 2), body, tmp_path)

    assert (
        "PeerLostError: Instance 0 on " in ran.instances[1].err + ran.instances[2].err
    )


def test_a_process_that_ends_while_mpi_starts_tears_down_no_library(
    hydra: str, tmp_path: Path
) -> None:
    body = """
    import ctypes
    os.environ["POPDIST_TIMEOUT"] = "0.5"
    if rank == 1:
        libc = ctypes.CDLL(None)
        libc.on_exit(libc.abort, None)
        fail(popdist.instance_group)
        print("ends")
    else:
        said = f"{sys.argv[1]}.1.out"
        while not os.path.exists(said) or "ends" not in open(said).read():
            time.sleep(0.01)
    """

    ran = run(hydra, (1, 1), body, tmp_path)

    assert (ran.code, ran.instances[1].err) == (0, "")
    assert ran.instances[1].out.startswith("CollectiveTimeoutError: ")


def test_a_thread_in_a_call_at_the_end_keeps_no_process_from_ending(
    links: str, tmp_path: Path
) -> None:
    body = """
    import threading
    group = popdist.instance_group()
    group.barrier()
    if rank == 0:
        threading.Thread(target=group.barrier, daemon=True).start()
        time.sleep(0.2)
    print("over")
    """

    ran = run(links, (1, 1), body, tmp_path)

    assert [one.out for one in ran.instances] == ["over\n"] * 2


# Each needs every instance sooner or later.
CALLS = {
    "broadcast": "group.broadcast(x, VICTIM, out=x)",
    "all_gather": "group.all_gather(x[0])",
    "gather": "group.gather(x[0], 1)",
    "scatter": "group.scatter(x if rank == 1 else None, 1)",
    "all_to_all": "group.all_to_all(x)",
    "reduce_scatter": "group.reduce_scatter(x)",
    "messages": """if rank % 2:
            group.recv(x, rank - 1)
            group.send(x, (rank + 1) % 4)
        else:
            group.send(x, rank + 1)
            group.recv(x, (rank - 1) % 4)""",
}


# The first instance of all, and one behind the leader of another host.
@pytest.mark.parametrize(("operation", "victim"), [*zip(CALLS, cycle([3, 0]))])
def test_an_instance_that_is_killed_in_a_call_is_named_by_all_others(
    tmp_path: Path, operation: str, victim: int
) -> None:
    body = f"""
    import threading
    group = popdist.instance_group()
    x = np.zeros((4, 300_000), np.float32)
    group.barrier()
    if rank == {victim}:
        threading.Timer(0.4, os.kill, (os.getpid(), signal.SIGKILL)).start()

    def call_for_ever():
      while True:
        {CALLS[operation].replace("VICTIM", str(victim))}

    fail(call_for_ever)
    # One that ends before the last of them has the error would be named, too.
    others = {{0, 1, 2, 3}} - {{{victim}}}
    while not all(os.path.getsize(f"{{sys.argv[1]}}.{{n}}.out") for n in others):
        time.sleep(0.01)
    """

    ran = run(TCP, (2, 2), body, tmp_path)

    for rank in {0, 1, 2, 3} - {victim}:
        assert ran.instances[rank].out.startswith(f"PeerLostError({victim},): ")


@pytest.mark.parametrize("operation", CALLS)
def test_a_death_ends_each_operation_over_mpi(
    hydra: str, tmp_path: Path, operation: str
) -> None:
    call = CALLS[operation].replace("VICTIM", "3")
    in_place = "    group.all_reduce(np.ones(int(sys.argv[4])))\n"
    assert in_place in DEATH
    ever = f"    rank = group.rank\n    while True:\n        {call}\n"
    script = tmp_path / "program.py"
    script.write_text(
        DEATH.replace(in_place, ever).replace(
            "group.barrier()\n",
            "group.barrier()\nx = np.zeros((4, 300_000), np.float32)\n",
        )
    )

    ran = subprocess.run(
        [
            *(POPRUN, "--mpirun", hydra, "--num-instances", "4", "--num-replicas"),
            *("4", "--ipus-per-replica", "1", "--grace", "20", "--keep-going"),
            *(sys.executable, str(script), "2,2", "3", str(tmp_path), ""),
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )

    assert ran.returncode == 137
    for rank in range(3):
        _, lost, _ = json.loads((tmp_path / str(rank)).read_text())
        assert lost == [3], ran.stderr


@pytest.mark.parametrize(
    "call",
    [
        "group.broadcast(x, 2, out=x)",
        "group.all_gather(x[0])",
        "group.gather(x[0], 0)",
        "group.scatter(x if rank == 2 else None, 2)",
        "group.all_to_all(x)",
    ],
)
def test_memory_of_a_failed_call_is_not_used_again_while_links_may_write_to_it(
    links: str, tmp_path: Path, call: str
) -> None:
    # Instance 2 sends its elements once instance 0 has failed and used memory again.
    body = f"""
    import gc
    group = popdist.instance_group()
    group.barrier()
    group.set_timeout(1)
    done = f"{{sys.argv[1]}}.done"
    x = np.full((3, 200_000), rank, np.float32)
    if rank == 2:
        while not os.path.exists(done):
            time.sleep(0.01)
    fail(lambda: {call})
    if rank == 0:
        del x
        gc.collect()
        later = [np.full(n << 10, 7.0) for n in range(1, 600, 7)]
        open(done, "w").close()
        time.sleep(0.5)
        print(all((one == 7).all() for one in later))
    """

    error, unchanged = run(links, (1, 2), body, tmp_path).outputs[0].splitlines()

    assert error.startswith("CollectiveTimeoutError: Instance ")
    assert unchanged == "True"


@pytest.mark.parametrize("has_another_file", [False, True])
def test_a_pidfd_that_the_program_closes_is_no_death(
    hydra: str, tmp_path: Path, has_another_file: bool
) -> None:
    body = f"""
    from popdist.engine.hosts.links_thread import started
    group = popdist.instance_group()
    group.barrier()
    if rank == 0:
        [pidfd] = started().pidfds.values()
        os.close(pidfd.fileno())
        if {has_another_file}:
            # It can always be read.
            os.dup2(os.open(__file__, os.O_RDONLY), pidfd.fileno())
        started().watch_this_host()
        print(started().dead, started().is_broken)
    group.barrier()
    """

    ran = run(hydra, (2, 1), body, tmp_path)

    assert ran.outputs == ["{} False", "", ""]
