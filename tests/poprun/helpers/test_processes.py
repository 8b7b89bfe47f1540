import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import wait_for
from subreaper import run_as_subreaper

from poprun.helpers import processes


@pytest.fixture
def start() -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Start programs that end with the test, and all that they have started."""
    started: list[subprocess.Popen[str]] = []

    def start(*words: str, environ: dict[str, str] | None = None) -> object:
        process = subprocess.Popen(
            words,
            env=environ,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start  # type: ignore[misc]
    for process in started:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        finally:
            process.communicate()


def look_up(pid: int) -> processes.Process:
    process = processes.process(pid)
    assert process
    return process


def pids(processes: list[processes.Process]) -> set[int]:
    return {p.pid for p in processes}


def test_a_line_of_proc_is_read_whatever_the_name_is() -> None:
    other_fields = " ".join(str(number) for number in range(3, 53))
    line = f"17 (a) b (R 1 2) S 4 {other_fields}".encode()

    process = processes.Process(17, line)

    assert (process.pid, process.parent, process.zombie) == (17, 4, False)
    assert process.start == 20


@pytest.mark.parametrize(
    ("state", "threads", "zombie"),
    [
        ("R", 1, False),
        ("D", 1, False),
        ("Z", 1, True),
        ("Z", 2, False),
        ("Z", 0, True),
        ("X", 0, True),
    ],
)
def test_the_dead_are_told_from_the_living(
    state: str, threads: int, zombie: bool
) -> None:
    line = f"17 (x) {state} 4 " + "0 " * 15 + f"{threads} " + "0 " * 30

    assert processes.Process(17, line.encode()).zombie is zombie


WITHOUT_ITS_LEADER = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def test_threads_that_outlive_their_leader_are_a_living_process(
    start: Callable[..., "subprocess.Popen[str]"],
) -> None:
    child = start(sys.executable, "-c", WITHOUT_ITS_LEADER)
    stat = Path(f"/proc/{child.pid}/stat")
    wait_for(lambda: ") Z " in stat.read_text(), "the end of the main thread")

    assert not look_up(child.pid).zombie
    assert child.pid in pids(processes.descendants([os.getpid()]))
    child.kill()
    wait_for(lambda: look_up(child.pid).zombie, "the end of the process")


def test_a_program_of_any_name_is_found(
    tmp_path: Path, start: Callable[..., "subprocess.Popen[str]"]
) -> None:
    name = str(tmp_path / "a) b (")
    os.symlink("/bin/sleep", name)

    child = start(name, "600")
    wait_for(
        lambda: Path(f"/proc/{child.pid}/comm").read_text() == "a) b (\n", "its name"
    )

    assert look_up(child.pid).parent == os.getpid()
    assert processes.start_time(child.pid) == look_up(child.pid).start > 0
    assert child.pid in pids(processes.descendants([os.getpid()]))


def test_start_times_tell_processes_apart() -> None:
    own_start = processes.start_time(os.getpid())

    assert own_start == processes.start_time(os.getpid())
    # Counted from the start of the machine, in hundredths of a second.
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    assert 0 < own_start <= uptime * os.sysconf("SC_CLK_TCK")


def test_a_pid_without_a_process_gives_none() -> None:
    child = subprocess.Popen(["true"])
    child.wait()

    assert processes.process(child.pid) is None
    assert processes.start_time(child.pid) == 0
    assert processes.descendants([child.pid]) == []


def test_descendants_are_the_whole_tree_without_its_roots(
    start: Callable[..., "subprocess.Popen[str]"],
) -> None:
    root = start("sh", "-c", "sleep 600 & sh -c 'sleep 600 & echo $! $$; wait' & wait")
    other = start("sleep", "600")
    assert root.stdout
    grandchild, child = map(int, root.stdout.readline().split())

    tree = pids(processes.descendants([root.pid]))

    assert {grandchild, child} < tree
    assert len(tree) == 3
    assert pids(processes.descendants([root.pid, other.pid])) == tree
    assert {root.pid, other.pid} | tree <= pids(processes.descendants([os.getpid()]))


def test_a_dead_child_is_no_descendant() -> None:
    child = subprocess.Popen(["true"])
    wait_for(lambda: look_up(child.pid).zombie, "the end of true")

    assert child.pid not in pids(processes.descendants([os.getpid()]))
    child.wait()


def test_a_variable_finds_the_processes_started_with_it(
    start: Callable[..., "subprocess.Popen[str]"],
) -> None:
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    ours = start("sleep", "600", environ={"A": "1", "JOB": mark})
    start("sleep", "600", environ={"JOB": f"{mark}0"})
    start("sleep", "600", environ={"MY_JOB": mark})
    start("sleep", "600", environ={"A": f"JOB={mark}"})

    wait_for(
        lambda: pids(processes.with_variable(f"JOB={mark}".encode())) == {ours.pid},
        "the one process with the variable",
    )


def test_a_process_that_has_the_number_of_another_is_not_signalled(
    start: Callable[..., "subprocess.Popen[str]"],
) -> None:
    child = start("sleep", "600")
    earlier = look_up(child.pid)
    earlier.start -= 1

    processes.send(signal.SIGKILL, earlier)
    processes.send(signal.SIGTERM, look_up(child.pid))

    assert child.wait(200) == -signal.SIGTERM


def test_signalling_the_dead_is_no_error() -> None:
    child = subprocess.Popen(["true"])
    wait_for(lambda: look_up(child.pid).zombie, "the end of true")
    gone = look_up(child.pid)

    processes.send(signal.SIGTERM, gone)
    child.wait()
    processes.send(signal.SIGTERM, gone)


def test_reap_collects_all_that_have_ended_and_does_not_wait() -> None:
    assert run_as_subreaper("""
one, two = os.fork(), 0
if not one: os._exit(3)
two = os.fork()
if not two: signal.pause()
print(processes.has_children())
while not processes.process(one).zombie: pass
# Looking does not collect.
print(processes.has_children(), processes.has_children())
print(processes.reap() == [(one, 3 << 8)], processes.reap(), processes.has_children())
os.kill(two, 9)
while not processes.process(two).zombie: pass
print(processes.reap() == [(two, 9)], processes.reap(), processes.has_children())
""").splitlines() == ["True", "True True", "True [] True", "True [] False"]


def test_end_ends_all_and_says_how_many_there_were() -> None:
    assert run_as_subreaper("""
for script in ("exec sleep 600", "trap '' TERM; while :; do sleep 600 & wait; done",
               "setsid env -i sh -c 'sleep 600 & sleep 600' & sleep 600",
               "kill -STOP $$"):
    if not os.fork():
        os.setsid()
        os.execv("/bin/sh", ["sh", "-c", script])
while len(processes.descendants([os.getpid()])) < 8: time.sleep(0.01)
time.sleep(0.05)
count, _ = processes.end(lambda: processes.descendants([os.getpid()]), 0.1, 200.0)
print(count >= 8, processes.has_children())
""").splitlines() == ["True False"]


def test_end_asks_before_it_kills() -> None:
    assert run_as_subreaper("""
read, write = os.pipe()
os.set_inheritable(write, True)
if not os.fork():
    os.execv("/bin/sh", ["sh", "-c",
        f"trap 'echo bye >&{write}; exit' TERM; echo on >&{write}; "
        "while :; do sleep 0.02; done"])
os.read(read, 3)
processes.end(lambda: processes.descendants([os.getpid()]), 200.0, 240.0)
print(os.read(read, 9))
""").splitlines() == ["b'bye\\n'"]


def test_end_reaps_a_child_that_ends_while_it_looks() -> None:
    child = os.posix_spawn("/bin/sleep", ["sleep", "600"], {})

    def find() -> list[processes.Process]:
        os.kill(child, signal.SIGKILL)
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        return []

    processes.end(find, 0, 200.0)

    assert processes.process(child) is None


def test_end_gives_up_on_what_cannot_be_ended() -> None:
    # A process that poprun's signals do not reach looks like this.
    stuck = look_up(os.getpid())
    stuck.start -= 1

    assert processes.end(lambda: [stuck], 0.0, 0.05) == (1, [])


def test_end_ends_what_is_too_fast_to_be_found() -> None:
    # Each process starts the next and ends.
    assert run_as_subreaper("""
if not os.fork():
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while not os.fork(): time.sleep(0.0003)
    os._exit(0)
time.sleep(0.1)
ended = processes.end(lambda: [], 0.0, 200.0, all_children=True)
print(ended, processes.has_children())
""").splitlines() == ["(0, []) False"]


@pytest.mark.skipif(os.geteuid() != 0, reason="two users take root to start them")
def test_end_does_not_wait_for_another_users_processes() -> None:
    assert run_as_subreaper("""
ready, come = os.pipe()
alive, end = os.pipe()
others = os.fork()
if not others:
    os.close(end)
    os.read(alive, 1)
    os._exit(0)
if not os.fork():
    os.close(end)
    os.setresuid(65534, 65534, 65534)
    os.write(come, b"x")
    signal.pause()
os.read(ready, 1)
os.setresuid(65534, 65534, 65534)
count, left = processes.end(lambda: processes.descendants([os.getpid()]), 0.1, 200.0)
print(count, [processes.describe(p)[0] for p in left], processes.has_children())
print(left[0].pid == others, processes.send(signal.SIGKILL, left[0]))
""").splitlines() == ["2 [0] True", "True False"]


@pytest.mark.parametrize(
    ("seconds", "milliseconds"),
    [
        (float("inf"), -1),
        (0.0, 1),
        (-5.0, 0),
        (1.5, 1501),
        (1e6, processes.LONGEST_POLL_MS),
        (1e300, processes.LONGEST_POLL_MS),
    ],
)
def test_no_wait_is_longer_than_poll_can_count(
    seconds: float, milliseconds: int
) -> None:
    assert processes.poll_timeout(seconds) == milliseconds


@pytest.mark.parametrize(
    ("status", "code"),
    [
        pytest.param(0, 0, id="success"),
        pytest.param(7 << 8, 7, id="exit-7"),
        pytest.param(255 << 8, 255, id="exit-255"),
        pytest.param(signal.SIGKILL, 137, id="killed"),
        pytest.param(signal.SIGSEGV, 139, id="crashed"),
        pytest.param(signal.SIGSEGV | 0x80, 139, id="crashed-with-a-core-dump"),
        pytest.param(64, 192, id="last-real-time-signal"),
    ],
)
def test_the_exit_code_is_what_a_shell_would_say(status: int, code: int) -> None:
    assert processes.exit_code(status) == code


@pytest.mark.parametrize(
    ("number", "name"), [(9, "SIGKILL"), (11, "SIGSEGV"), (40, "signal 40")]
)
def test_signals_have_their_names_if_they_have_one(number: int, name: str) -> None:
    assert processes.signal_name(number) == name
