"""poprun.run_command and poprun.launch, called by real programs and a real notebook."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import Poprun, wait_for

from tests.notebooks import Notebook

# Without an MPI: what is tested is how Python is called, and called back.
LOCAL = '["--mpirun=local", "--offline-mode=yes"]'


def start(poprun: Poprun, text: str, **options: object) -> "subprocess.Popen[bytes]":
    """Start a program that calls poprun, and return at once."""
    settings: dict[str, object] = {
        "cwd": poprun.directory,
        "env": poprun.environ,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "stdin": subprocess.DEVNULL,
        **options,
    }
    name = poprun.script("caller.py", text)
    process: subprocess.Popen[bytes] = subprocess.Popen(
        [sys.executable, name],
        **settings,  # type: ignore[call-overload]
    )
    poprun.started.append(process)
    return process


def output_of(poprun: Poprun, text: str) -> tuple[int, str, str]:
    process = start(poprun, text)
    out, err = process.communicate(timeout=200)
    return process.returncode, out.decode(), err.decode()


def test_a_command_returns_how_its_job_has_ended(poprun: Poprun) -> None:
    text = f"""
import poprun
words = [*{LOCAL}, "-n", "2", "sh", "-c", "echo $RANK; exit $((RANK * 3))"]
result = poprun.run_command(words)
print(result.exit_code, result.outcome, result.failed_instance, result.cause)
print([(one.instance, one.state, one.exit_code) for one in result.instances])
try:
    poprun.run_command(words, check=True)
except poprun.JobFailedError as error:
    print(error, error.result.exit_code)
"""

    code, out, err = output_of(poprun, text)

    cause = "Instance 1 on localhost exited with code 3."
    lines = [line for line in out.splitlines() if len(line) > 1]
    assert code == 0, err
    assert lines[0] == f"3 instance_failed 1 {cause}"
    assert lines[1].endswith("(1, 'failed', 3)]")
    assert lines[2] == f"{cause} 3"
    # Files of its own are the caller's: poprun writes to them itself.
    assert f"poprun: error: {cause}" in err


# Kills poprun, the child of the process with the PID of its argument.
KILL_POPRUN = """
import os, sys
pid = os.getpid()
while (parent := int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])):
    if parent == int(sys.argv[1]):
        os.kill(pid, 9)
    pid = parent
"""


@pytest.mark.parametrize("handler", ["SIG_IGN", "SIG_DFL"])
def test_a_failed_job_is_no_success_in_a_program_that_ignores_its_children(
    poprun: Poprun, handler: str
) -> None:
    text = f"""
import os, poprun, signal, sys
signal.signal(signal.SIGCHLD, signal.{handler})
result = poprun.run_command([*{LOCAL}, "sh", "-c", "exit 3"])
print(result.exit_code, result.outcome)
try:
    poprun.run_command([*{LOCAL}, "sh", "-c", "exit 3"], check=True)
except poprun.JobFailedError as error:
    print(error.exit_code)
program = [sys.executable, "-c", {KILL_POPRUN!r}, str(os.getpid())]
result = poprun.run_command([*{LOCAL}, *program])
print(result.exit_code, result.outcome, result.cause)
result = poprun.run_command(["--version"])
print(result.exit_code, result.outcome)
"""

    code, out, err = output_of(poprun, text)

    killed = {"SIG_IGN": 125, "SIG_DFL": -9}[handler]
    assert code == 0, err
    assert out.splitlines() == [
        "3 instance_failed",
        "3",
        f"{killed} launcher_failed poprun ended before it could say how its job ended.",
        "poprun 0.1.0",
        "0 succeeded",
    ]


def test_the_cause_of_an_error_is_there_when_poprun_is_killed(poprun: Poprun) -> None:
    text = f"""
import os, poprun, signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
caller = os.getpid()

class BadLuckError(Exception):
    # Its truth value is False.
    def __len__(self):
        return 0

def fail():
    import sys
    sys.argv[1:] = [str(caller)]
    sys.excepthook = lambda *_: exec({KILL_POPRUN!r}, {{}})
    raise BadLuckError("today")

try:
    poprun.launch(fail, options={LOCAL})
except poprun.JobFailedError as error:
    print(error)
    print(type(error.__cause__).__name__, error.__cause__)
"""

    code, out, err = output_of(poprun, text)

    assert (code, out) == (
        0,
        "poprun ended before it could say how its job ended.\nBadLuckError today\n",
    ), err


def test_a_command_returns_its_output_if_that_is_asked_for(poprun: Poprun) -> None:
    text = f"""
import poprun
program = ["sh", "-c", "echo out; printf '\\\\377e' >&2; exit 3"]
words = [*{LOCAL}, "-n", "1", *program]
result = poprun.run_command(words, capture_output=True)
print([result.exit_code, result.stdout, result.stderr.splitlines()])
print([poprun.run_command([*{LOCAL}, "-n", "1", "echo", "out"]).stdout])
"""

    code, out, err = output_of(poprun, text)

    cause = (
        "poprun: error: Instance 0 on localhost exited with code 3; its stderr ends "
        'with "\\xffe".'
    )
    assert code == 0, err
    assert out.splitlines() == [
        str([3, "out\n", ["\ufffde", cause]]),
        "out",
        "['']",
    ]
    assert err == ""


def test_a_failed_job_has_the_traceback_of_its_instance(poprun: Poprun) -> None:
    text = f"""
import poprun
program = ["python", "-c", "import os; print(1 / int(os.environ['RANK']))"]
try:
    poprun.run_command([*{LOCAL}, "-n", "2", "--keep-going", *program], check=True)
except poprun.JobFailedError as error:
    failed, succeeded = error.result.instances
    print(failed.traceback)
    print(failed.stderr_tail == failed.traceback, succeeded.traceback)
"""

    code, out, err = output_of(poprun, text)

    assert code == 0, err
    first, *_, last, same = out.splitlines()[1:]
    assert first == "Traceback (most recent call last):"
    assert last == "ZeroDivisionError: division by zero"
    assert same == "True None"


def test_a_function_runs_on_all_instances_and_its_results_come_back_in_order(
    poprun: Poprun,
) -> None:
    poprun.script("beside.py", "def double(x): return 2 * x")
    text = f"""
import poprun

def mean(array, offset):
    import beside, popdist
    total = popdist.instance_group().all_reduce(array + popdist.getInstanceIndex())
    return beside.double(total) + offset, popdist.getNumTotalReplicas()

import numpy
options = {LOCAL}
print(poprun.launch(mean, numpy.ones(2), 5, num_instances=3, options=options))
print(poprun.launch(lambda: 1, num_instances=2, num_replicas=4, options=options))
print(poprun.launch(len, "abc", options=options))
"""

    code, out, err = output_of(poprun, text)

    assert (code, err) == (0, "")
    assert out == f"{[('array([17., 17.])', 3)] * 3}\n[1, 1]\n[3]\n".replace("'", "")


def test_an_exception_of_an_instance_is_the_cause_of_the_error(poprun: Poprun) -> None:
    text = f"""
import poprun

class BadLuckError(Exception):
    pass

def fail(message):
    import popdist
    if popdist.getInstanceIndex() == 1:
        raise BadLuckError(message)

try:
    poprun.launch(fail, "today", num_instances=2, options={LOCAL})
except poprun.JobFailedError as error:
    print(error)
    print(type(error.__cause__).__name__, error.__cause__)
"""

    code, out, err = output_of(poprun, text)

    assert (code, out) == (
        0,
        "Instance 1 on localhost exited with code 1: BadLuckError: today\n"
        "BadLuckError today\n",
    )
    assert "in fail" in err


@pytest.mark.parametrize("page", ["--dry-run", "--help", "--mpi-global-args=--version"])
def test_a_function_is_not_called_where_poprun_only_prints(
    poprun: Poprun, page: str
) -> None:
    text = f"""
import poprun
try:
    poprun.launch(len, "", options=[*{LOCAL}, "{page}"])
except Exception as error:
    print(type(error).__name__, error)
"""

    code, out, err = output_of(poprun, text)

    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == (
        "OptionError poprun has printed a page and started no instance, so the "
        "function was not called. Leave out what asks for that, such as --dry-run, or "
        "call poprun.run_command."
    )


def test_a_word_may_be_a_path(poprun: Poprun) -> None:
    text = f"""
import poprun, pathlib
words = [*{LOCAL}, "-n2", pathlib.Path("/bin/echo"), "here"]
print(poprun.run_command(words, capture_output=True).stdout.split())
print(poprun.launch(len, "ab", options=[*{LOCAL}, "--log-dir", pathlib.Path("logs")]))
"""

    code, out, err = output_of(poprun, text)

    assert (code, out, err) == (0, "['here', 'here']\n[2]\n", "")


def test_a_result_that_cannot_be_copied_is_an_error_of_its_instance(
    poprun: Poprun,
) -> None:
    text = f"""
import poprun, threading
poprun.launch(threading.Lock, options={LOCAL})
"""

    code, _, err = output_of(poprun, text)

    assert code == 1
    assert "cannot pickle '_thread.lock' object" in err


def test_an_instance_that_is_killed_while_it_writes_its_result_has_failed(
    poprun: Poprun,
) -> None:
    text = f"""
import poprun

def write_half():
    import os, sys
    with open(sys.argv[-1], "wb") as file:
        file.write(bytes([128, 5, 149]))
    os._exit(3)

try:
    poprun.launch(write_half, options={LOCAL})
except poprun.JobFailedError as error:
    print(error, error.__cause__)
"""

    code, out, err = output_of(poprun, text)

    assert (code, out) == (0, "Instance 0 on localhost exited with code 3. None\n"), err


def test_more_instances_than_there_is_room_for_are_refused(poprun: Poprun) -> None:
    text = """
import poprun
poprun.launch(len, "abc", options=["--num-instances=2", "--num-replicas=2"])
"""

    code, _, err = output_of(poprun, text)

    assert code == 1
    assert "Pass num_instances=2 instead." in err


def test_a_result_file_of_the_caller_s_own_is_refused(poprun: Poprun) -> None:
    text = 'import poprun; poprun.run_command(["--result=r", "-n", "1", "true"])'

    code, _, err = output_of(poprun, text)

    assert code == 1
    assert "--result is how run_command learns of the job's end." in err


# Calls to a file and a pipe, whose output poprun writes itself; and to a stream of
# Python's, as a notebook has, through which it is copied.
STREAMS = ["", "import io, sys; sys.stdout = io.StringIO()\n"]


@pytest.mark.parametrize("stream", STREAMS, ids=["descriptor", "stream"])
# As Ctrl-C and a notebook's stop button do; as kill -INT and an IDE's do.
@pytest.mark.parametrize("kill", [os.killpg, os.kill], ids=["group", "process"])
def test_an_interrupt_stops_the_job_once_and_is_raised(
    poprun: Poprun, kill: Callable[[int, int], None], stream: str
) -> None:
    text = f"""
{stream}import poprun
def wait():
    import popdist, time
    instance = popdist.getInstanceIndex()
    try:
        open(f"runs-{{instance}}", "w").close()
        # No long call: a signal that comes right before it does not interrupt it.
        while True:
            time.sleep(0.05)
    except KeyboardInterrupt:
        # A second interrupt would kill the instance meanwhile.
        time.sleep(1)
        open(f"clean-{{instance}}", "w").close()
try:
    poprun.launch(wait, num_instances=2, options=[*{LOCAL}, "--grace=100"])
except KeyboardInterrupt:
    open("interrupted", "w").close()
"""
    process = start(poprun, text, start_new_session=True)
    files = [Path(poprun.directory, f"runs-{rank}") for rank in range(2)]
    wait_for(lambda: all(map(Path.exists, files)), "the instances")

    kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=200)

    assert process.returncode == 0, err
    names = ("clean-0", "clean-1", "interrupted")
    assert [Path(poprun.directory, name).exists() for name in names] == [True] * 3


@pytest.mark.parametrize("kill", [os.killpg, os.kill], ids=["group", "process"])
def test_a_second_interrupt_kills_the_instances(
    poprun: Poprun, kill: Callable[[int, int], None]
) -> None:
    text = f"""
import poprun
script = 'trap "touch asked-$RANK" INT; touch runs-$RANK; while :; do sleep 0.1; done'
words = [*{LOCAL}, "-n", "2", "--grace=1000", "sh", "-c", script]
try:
    poprun.run_command(words)
except KeyboardInterrupt:
    open("interrupted", "w").close()
"""
    process = start(poprun, text, start_new_session=True)

    for name in ("runs", "asked"):
        files = [Path(poprun.directory, f"{name}-{rank}") for rank in range(2)]
        wait_for(lambda files=files: all(map(Path.exists, files)), name)
        kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=200)

    assert process.returncode == 0, err
    assert Path(poprun.directory, "interrupted").exists()


@pytest.mark.parametrize("kill", [os.killpg, os.kill], ids=["group", "process"])
def test_an_interrupt_before_the_first_instance_ends_the_command_with_one_sentence(
    poprun: Poprun, kill: Callable[[int, int], None]
) -> None:
    mpirun = poprun.directory / "slow"
    mpirun.write_text("#!/bin/sh\ntouch asked\nsleep 99")
    mpirun.chmod(0o755)
    text = f"""
import poprun
try:
    poprun.run_command(["--mpirun={mpirun}", "--offline-mode=yes", "true"])
except KeyboardInterrupt:
    print("interrupted")
"""
    process = start(poprun, text, start_new_session=True)
    wait_for(lambda: Path(poprun.directory, "asked").exists(), "mpirun")

    kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=200)

    assert (process.returncode, out, err) == (
        0,
        b"interrupted\n",
        b"poprun: error: Stopped by SIGINT before any instance was started.\n",
    )


def test_a_killed_caller_ends_its_job(poprun: Poprun) -> None:
    text = f"""
import poprun
def wait():
    import time
    open("runs", "w").close()
    time.sleep(1000)
poprun.launch(wait, num_instances=2, options={LOCAL})
"""
    process = start(poprun, text)
    wait_for(lambda: Path(poprun.directory, "runs").exists(), "the instances")

    process.kill()
    process.communicate(timeout=200)

    # The fixture waits until nothing of it is left.


@pytest.fixture
def notebook(poprun: Poprun) -> Iterator[Notebook]:
    opened = Notebook(poprun)
    yield opened
    opened.close()


def test_a_notebook_s_cells_run_functions_of_cells_and_are_interrupted(
    poprun: Poprun, notebook: Notebook
) -> None:
    notebook.output(
        notebook.run(
            "import poprun\n"
            "def rank():\n"
            "    import popdist\n"
            "    print('hello from', popdist.getInstanceIndex())\n"
            "    return popdist.getInstanceIndex()\n"
            "def wait():\n"
            "    import time\n"
            "    open('runs', 'w').close()\n"
            "    time.sleep(1000)\n"
        )
    )

    cell = notebook.run(f"print(poprun.launch(rank, num_instances=2, options={LOCAL}))")
    printed = notebook.output(cell)
    cell = notebook.run(f"poprun.launch(wait, num_instances=2, options={LOCAL})")
    wait_for(lambda: Path(poprun.directory, "runs").exists(), "the instances")
    notebook.interrupt()
    stopped = notebook.output(cell)

    lines = printed.splitlines()
    assert sorted(lines[:2]) == ["hello from 0", "hello from 1"]
    assert lines[2:] == ["[0, 1]"]
    assert stopped.endswith("KeyboardInterrupt")
    assert "SIGINT" in stopped


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (
            "poprun.run_command('-n 2 true')",
            "TypeError The argument of run_command is a list with a string for each "
            "word, but got '-n 2 true'. shlex.split() makes such a list of a command "
            "line.",
        ),
        (
            "poprun.launch(len, '', options='--summary')",
            "TypeError The argument options of launch is a list with a string for each "
            "word, but got '--summary'. shlex.split() makes such a list of a command "
            "line.",
        ),
        (
            "poprun.launch(len, '', options=[None])",
            "TypeError The argument options of launch is a list with a string for each "
            "word, but has None in it. Write it as a string, or leave it out.",
        ),
        (
            "poprun.run_command(['-n', 2, 'true'])",
            "TypeError The argument of run_command is a list with a string for each "
            "word, but has 2 in it. Write it as a string, or leave it out.",
        ),
        (
            "poprun.launch(3)",
            "TypeError poprun.launch calls a function on every instance, but got 3, "
            "which cannot be called.",
        ),
        (
            "poprun.launch(len, '', num_instances=0)",
            "OptionError num_instances is 0, but must be 1 or more.",
        ),
        (
            "poprun.launch(len, '', num_replicas=-2)",
            "OptionError num_replicas is -2, but must be 1 or more.",
        ),
        (
            "poprun.launch(len, '', num_instances=2.0)",
            "TypeError num_instances is 2.0, but must be an int, such as 4.",
        ),
        (
            "poprun.launch(len, '', num_instances='auto')",
            "TypeError num_instances is 'auto', but must be an int, such as 4.",
        ),
    ],
)
def test_a_wrong_argument_is_refused_before_anything_starts(
    poprun: Poprun, call: str, error: str
) -> None:
    text = f"""
import poprun, subprocess
subprocess.Popen = None
try:
    {call}
except Exception as error:
    print(type(error).__name__, error)
"""

    code, out, err = output_of(poprun, text)

    assert (code, out, err) == (0, f"{error}\n", "")
