"""A shim without mpirun: driven over a socket pair, as poprun would."""

import errno
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from conftest import wait_for

from poprun.helpers import own_process, processes
from poprun.helpers.end_actions import EndActions, RemovePath, run_command
from poprun.helpers.helper_commands import PYTHON
from poprun.helpers.job_files import make_lock
from poprun.wire import protocol
from poprun.wire.channel import Channel

SHIM = """
import os, resource, signal, socket, sys, time
from poprun.helpers import own_process, processes, shim
from poprun.helpers.shim import Shim
from poprun.wire.channel import Channel
class Unprivileged(Shim):
    def _start(self, spec):
        super()._start(spec)
        os.setresuid(65534, 65534, 65534)
own_process.become_subreaper()
sigterm = own_process.receive_sigterm()
wake = own_process.wake_up_on(signal.SIGCHLD)
class Late(Shim):
    def _reap(self):
        while self._program and not processes.process(self._program).zombie:
            time.sleep(0.001)
        super()._reap()
if "forking" in sys.argv:
    own_process.default_signals = lambda **_: os.kill(os.getpid(), signal.SIGSTOP)
if "stopped" in sys.argv:
    os.kill(os.getpid(), signal.SIGSTOP)
kind = Unprivileged if "unprivileged" in sys.argv else Shim
kind = Late if "late" in sys.argv else kind
shim.SLURM_FINDS_S = 0.0 if "settled" in sys.argv else 600.0
if "lingering" in sys.argv:
    shim.LINGER_S = 200.0
kind(Channel.of(int(sys.argv[1])), wake, sigterm).run()
"""
LATE = """
from poprun.helpers import shim
shim.ORPHAN_LIMIT_S = {limit_s}
shim.main(["attempt", "CONTROL", "0"])
"""
LIMIT_S = 200.0
IN_SLURM = {own_process.IN_SLURM: "1"}
needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="two users take root to start them"
)


class Driven:
    """A shim, and poprun's end of the socket to it.

    Args:
        options: "unprivileged" for a shim that changes its user when it has started the
            program, which is another user's from then on; "lingering" for one that
            waits long for what the program started; "settled" for one that takes its
            program for older than it is; "outside" for one outside of Slurm's jobs;
            "forking" for one whose fork is stopped before its exec;
            "stopped" for one that stops itself before it reads; "late" for one that
            looks for signals before its program ends, and not again until then.
    """

    def __init__(self, directory: Path, *options: str) -> None:
        ours, theirs = socket.socketpair()
        self.directory = directory
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", SHIM, str(theirs.fileno()), *options],
                pass_fds=[theirs.fileno()],
                env={**os.environ, **({} if "outside" in options else IN_SLURM)},
            )
        self.poprun = Channel(ours)
        self._came: list[tuple[int, list[bytes]]] = []

    def start(self, *argv: str, grace: float = 5.0, **spec: object) -> int:
        """Let it start a program, and return the program's pid."""
        self.ask(*argv, grace=grace, **spec)
        return int(self.wait(protocol.STARTED)[0])

    def ask(self, *argv: str, grace: float = 5.0, **spec: object) -> None:
        """Ask it to start a program."""
        path = argv[0] if "/" in argv[0] else f"/bin/{argv[0]}"
        asked: dict[str, object] = {
            "path": path.encode(),
            "argv": [os.fsencode(word) for word in argv],
            "environment": [b"PATH=" + os.environb[b"PATH"]],
            "cwd": os.fsencode(self.directory),
            "mpi_prefixes": [],
            "mpirun_prefixes": [],
            "users": [],
            "cpus": [],
            "memory_nodes": [],
            "stdin": b"/dev/null",
            "grace_ms": int(grace * 1000),
            "ignored": [],
            "terminals": (False, False),
            "size": (0, 0),
            "merge_stderr": False,
            "open_files": 0,
            "umask": 0o022,
            **spec,
        }
        self.poprun.send(protocol.Spec(**asked).pack())

    def send(self, kind: int, *fields: int) -> None:
        self.poprun.send(protocol.pack(kind, *fields))

    def wait(self, kind: int) -> list[bytes]:
        """Return the next message of a kind; others that come before it are dropped."""
        limit = time.monotonic() + LIMIT_S
        while time.monotonic() < limit:
            while self._came:
                found, fields = self._came.pop(0)
                if found == kind:
                    return fields
            if select.select([self.poprun], [], [], 0.1)[0]:
                messages = self.poprun.receive()
                assert messages is not None, "the shim is gone"
                self._came += messages
        left = processes.descendants([self.process.pid])
        words = [processes.describe(p) for p in left]
        raise AssertionError(f"no message of kind {kind} in {LIMIT_S} s: {words}")

    def appears(self, *names: str) -> None:
        for name in names:
            wait_for((self.directory / name).exists, f"the file {name}")

    def close(self) -> None:
        self.poprun.close()
        self.process.wait(LIMIT_S)


@pytest.fixture
def drive(tmp_path: Path) -> Iterator[Callable[..., Driven]]:
    """Return what starts a shim with options, which is closed after the test."""
    with ExitStack() as shims:

        def start(*options: str) -> Driven:
            driven = Driven(tmp_path, *options)
            shims.callback(driven.close)
            return driven

        yield start


@pytest.fixture
def shim(drive: Callable[..., Driven]) -> Driven:
    return drive()


# A process that takes a while to save its work when it is asked to end.
SAVING = """
import signal, sys, time
from pathlib import Path
def save(number, frame):
    time.sleep(1.5)
    Path("saved").write_text(signal.Signals(number).name)
    sys.exit()
signal.signal(signal.SIGTERM, save)
signal.signal(signal.SIGINT, save)
Path("ready").touch()
time.sleep(600)
"""
WRAPPERS: Mapping[str, list[str]] = {
    "a shell that has more to do": ["sh", "-c", "$PYTHON saving.py; true"],
    "a script": ["bash", "-c", "$PYTHON saving.py\ntrue"],
    "a pipe": ["sh", "-c", "$PYTHON saving.py | cat"],
    "a session of its own": ["sh", "-c", "setsid -w $PYTHON saving.py; true"],
    "a time limit": ["sh", "-c", "timeout 600 $PYTHON saving.py; true"],
    "a daemon": ["sh", "-c", "(env -i setsid $PYTHON saving.py &); sleep 600"],
}


def saving(shim: Driven, wrapper: str) -> list[str]:
    (shim.directory / "saving.py").write_text(SAVING)
    return [word.replace("$PYTHON", sys.executable) for word in WRAPPERS[wrapper]]


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_what_is_below_a_wrapper_has_the_grace_of_the_job(
    shim: Driven, wrapper: str
) -> None:
    shim.start(*saving(shim, wrapper), grace=60.0)
    shim.appears("ready")

    shim.send(protocol.SIGNAL, signal.SIGTERM)

    assert shim.wait(protocol.CLEAN) == [b"0"]
    assert (shim.directory / "saved").read_text() == "SIGTERM"


def test_a_failed_instances_children_have_the_grace_of_the_job(
    drive: Callable[..., Driven],
) -> None:
    # Children of a program that has ended by itself are not ended before the signal.
    shim = drive("lingering")
    words = saving(shim, "a shell that has more to do")
    words[2] = words[2].replace("; true", " & until [ -e ready ]; do :; done; exit 3")
    shim.start(*words, grace=60.0)

    assert shim.wait(protocol.EXITED)[0] == b"%d" % (3 << 8)
    shim.send(protocol.SIGNAL, signal.SIGTERM)

    shim.wait(protocol.CLEAN)
    assert (shim.directory / "saved").read_text() == "SIGTERM"


def test_kill_ends_the_grace(shim: Driven) -> None:
    script = "trap '' TERM; (trap '' TERM; sleep 600) & touch ready; sleep 600; wait"
    shim.start("sh", "-c", script, grace=600.0)
    shim.appears("ready")

    shim.send(protocol.SIGNAL, signal.SIGTERM)
    shim.send(protocol.KILL)

    assert shim.wait(protocol.EXITED)[5] == protocol.BY_POPRUN
    assert shim.wait(protocol.CLEAN) == [b"0"]


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Send SIGTERM to some processes, as Slurm does to all of a job."""
    # The kernel names a process after its script.
    script = tmp_path / "slurmstepd"
    script.write_text("#!/bin/sh\nkill -TERM $@\nread line\n")
    script.chmod(0o755)
    senders: list[subprocess.Popen[bytes]] = []

    def send(*pids: int) -> None:
        words = [str(script), *map(str, pids)]
        senders.append(subprocess.Popen(words, stdin=subprocess.PIPE))

    yield send
    for sender in senders:
        sender.communicate(timeout=LIMIT_S)


COUNTS = "trap 'echo >>signals' TERM; : >ready; while :; do sleep 0.01; done"


@pytest.mark.parametrize(
    ("options", "num_signals"),
    [
        pytest.param(["settled"], 1, id="signalled"),
        pytest.param([], 2, id="started while Slurm looked for processes"),
    ],
)
def test_what_slurm_has_signalled_goes_on_and_is_not_signalled_again(
    drive: Callable[..., Driven],
    slurm: Callable[..., None],
    options: list[str],
    num_signals: int,
) -> None:
    shim = drive(*options)
    pid = shim.start("sh", "-c", COUNTS, grace=600.0)
    shim.appears("ready")

    slurm(shim.process.pid, pid)
    shim.appears("signals")
    shim.send(protocol.SIGNAL, signal.SIGTERM)
    signals = shim.directory / "signals"
    wait_for(lambda: signals.stat().st_size == num_signals, "the signals")
    shim.send(protocol.SHOW_STACKS, 0)
    shim.wait(protocol.STACKS)
    shim.send(protocol.SIGNAL, signal.SIGKILL)

    assert shim.wait(protocol.EXITED)[0] == b"9"
    assert signals.stat().st_size == num_signals


@pytest.mark.parametrize("options", [[], ["late"]])
def test_a_program_that_slurm_ends_has_not_ended_by_itself(
    drive: Callable[..., Driven], slurm: Callable[..., None], options: list[str]
) -> None:
    shim = drive(*options)
    pid = shim.start("sleep", "600")

    slurm(shim.process.pid, pid)

    assert shim.wait(protocol.EXITED)[5] == protocol.BY_SLURM


@needs_root
@pytest.mark.parametrize(
    ("options", "by"),
    [
        pytest.param([], protocol.BY_SLURM, id="in a job of Slurm"),
        pytest.param(["outside"], protocol.BY_MPI, id="outside"),
    ],
)
def test_root_s_signal_to_the_processes_of_a_user_is_slurm_s_in_its_job(
    drive: Callable[..., Driven], options: list[str], by: bytes
) -> None:
    shim = drive("unprivileged", *options)
    pid = shim.start("setpriv", "--reuid=65534", "sleep", "600")
    status = Path(f"/proc/{shim.process.pid}/status")
    wait_for(lambda: "Uid:\t65534" in status.read_text(), "the shim's change of user")

    # No process of this name is Slurm's.
    shim.process.terminate()
    # Outside of Slurm's jobs the shim ends the program, perhaps before this does.
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)

    assert shim.wait(protocol.EXITED)[5] == by


def test_a_signal_of_mpirun_s_ends_the_program_at_once(shim: Driven) -> None:
    shim.start("sh", "-c", COUNTS, grace=600.0)
    shim.appears("ready")

    shim.process.terminate()

    status, *_, by, _ = shim.wait(protocol.EXITED)
    assert (status, by) == (b"9", protocol.BY_MPI)


@pytest.mark.parametrize(
    ("script", "by"),
    [
        ("ulimit -t 1; while :; do :; done", protocol.BY_CPU_LIMIT),
        ("ulimit -t 1000; kill -KILL $$", protocol.BY_ITSELF),
        ("ulimit -t 1; exit 3", protocol.BY_ITSELF),
    ],
)
def test_a_program_that_is_killed_at_its_limit_of_cpu_time_is_told_apart(
    shim: Driven, script: str, by: bytes
) -> None:
    shim.start("sh", "-c", script)

    assert shim.wait(protocol.EXITED)[5] == by


def test_ctrl_c_ends_what_a_shell_has_in_the_background(shim: Driven) -> None:
    # A shell without job control starts it with SIGINT ignored.
    shim.start("sh", "-c", "sleep 600 & : > ready; wait", grace=600.0)
    shim.appears("ready")

    shim.send(protocol.SIGNAL, signal.SIGINT)

    assert shim.wait(protocol.CLEAN) == [b"0"]


IGNORING = "trap '' INT; sleep 600 & : > ready; wait"
# As time does, which leaves SIGINT to what it starts. (A shell loses the SIGINT that
# comes while it starts a program: this one starts none after it has made the file.)
LEAVING_IT_TO_A_CHILD = """
import os, signal, subprocess, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
restore = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
words = ["sh", "-c", ": > ready; exec sleep 600"]
sys.exit(-subprocess.run(words, preexec_fn=restore).returncode)
"""


@pytest.mark.parametrize(
    ("words", "status"),
    [
        pytest.param(("sh", "-c", IGNORING), signal.SIGTERM, id="ignored"),
        pytest.param(
            (sys.executable, "-c", LEAVING_IT_TO_A_CHILD),
            signal.SIGINT << 8,
            id="left-to-a-child",
        ),
    ],
)
def test_ctrl_c_is_sigterm_where_all_processes_ignore_sigint(
    shim: Driven, words: tuple[str, ...], status: int
) -> None:
    shim.start(*words, grace=600.0)
    shim.appears("ready")

    shim.send(protocol.SIGNAL, signal.SIGINT)

    assert shim.wait(protocol.EXITED)[0] == b"%d" % status
    shim.wait(protocol.CLEAN)


# What poprun's sitecustomize does.
HANDLES_STACKS = f"""
import ctypes, faulthandler, os, resource, signal, sys
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
faulthandler.register({protocol.STACKS_SIGNAL})
"""


@pytest.mark.parametrize(
    ("program", "environment", "lacks_faulthandler"),
    [
        ("ctypes.string_at(0)", b"A=1", b"1"),
        ("os.abort()", b"A=1", b"1"),
        ("os.abort()", b"PYTHONFAULTHANDLER=", b"1"),
        ("os.abort()", b"PYTHONFAULTHANDLER=1", b"0"),
        ("os.kill(os.getpid(), signal.SIGKILL)", b"A=1", b"0"),
        ("sys.exit(134)", b"A=1", b"0"),
        (f"faulthandler.unregister({protocol.STACKS_SIGNAL}); os.abort()", b"A=", b"0"),
    ],
)
def test_a_python_that_a_fault_ends_may_lack_its_faulthandler(
    shim: Driven, program: str, environment: bytes, lacks_faulthandler: bytes
) -> None:
    words = sys.executable, "-c", f"{HANDLES_STACKS}{program}"
    shim.start(*words, environment=[environment])

    assert shim.wait(protocol.EXITED)[6] == lacks_faulthandler


def test_another_spec_starts_a_program_that_has_ended_again(shim: Driven) -> None:
    first = shim.start("sh", "-c", "kill -KILL $$")
    assert shim.wait(protocol.EXITED)[0] == b"9"
    assert shim.wait(protocol.CLEAN) == [b"0"]

    second = shim.start("sh", "-c", "trap '' TERM; touch ready; sleep 600 & wait")
    shim.appears("ready")
    assert second != first
    shim.send(protocol.KILL)
    status, *_, by, _ = shim.wait(protocol.EXITED)
    assert (status, by) == (b"9", protocol.BY_POPRUN)
    shim.wait(protocol.CLEAN)
    shim.send(protocol.RELEASE)
    assert shim.process.wait(LIMIT_S) == 0


def test_leftovers_of_a_program_that_has_ended_are_ended(shim: Driven) -> None:
    child = "trap '' TERM; : > ready; exec sleep 600"
    script = f"({child}) & until [ -e ready ]; do :; done"
    shim.start("sh", "-c", script, grace=600.0)

    assert shim.wait(protocol.EXITED)[0] == b"0"
    assert shim.wait(protocol.CLEAN) == [b"1"]


def test_what_ends_soon_after_its_program_is_no_leftover(
    tmp_path: Path, drive: Callable[..., Driven]
) -> None:
    shim = drive("lingering")
    script = "(trap 'touch asked' TERM; sleep 0.05; touch done) & exit 0"
    shim.start("sh", "-c", script)

    assert shim.wait(protocol.CLEAN) == [b"0"]
    shim.close()
    assert (tmp_path / "done").exists()
    assert not (tmp_path / "asked").exists()


def test_an_error_while_a_jobs_files_are_removed_is_shown() -> None:
    code = "from poprun.helpers import shim; shim._undo_apart(lambda: [1 / 0])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert ran.stderr.endswith("ZeroDivisionError: division by zero\n")


def test_when_poprun_is_gone_the_program_ends(shim: Driven) -> None:
    pid = shim.start("sh", "-c", "trap '' TERM; sleep 600", grace=600.0)

    shim.poprun.close()

    assert shim.process.wait(LIMIT_S) == 0
    assert processes.process(pid) is None


CHAIN = r"""
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
int main(int argc, char **argv) {
    struct timespec link = {0, 300000};
    signal(SIGTERM, SIG_IGN);
    fclose(fopen("ready", "w"));
    if (fork())
        pause();
    for (;;) {
        if (atoi(argv[1]))
            setsid();
        nanosleep(&link, NULL);
        if (fork())
            _exit(0);
    }
}
"""


@pytest.mark.parametrize("sessions", ["0", "1"], ids=["one group", "many sessions"])
def test_a_chain_of_processes_each_of_which_starts_the_next_is_ended(
    shim: Driven, sessions: str
) -> None:
    source, program = shim.directory / "chain.c", shim.directory / "chain"
    source.write_text(CHAIN)
    subprocess.run(["cc", "-o", program, source], check=True)
    shim.start(str(program), sessions)
    shim.appears("ready")
    time.sleep(0.1)

    shim.send(protocol.KILL)

    assert shim.wait(protocol.CLEAN) == [b"0"]


@needs_root
def test_a_process_of_another_user_is_named_and_not_waited_for(
    drive: Callable[..., Driven],
) -> None:
    shim = drive("unprivileged")
    pid = shim.start("sleep", "600")

    shim.send(protocol.KILL)

    assert shim.wait(protocol.REMAINS) == [b"%d" % pid, b"0", b"sleep 600"]
    assert shim.wait(protocol.CLEAN) == [b"0"]
    shim.close()
    os.kill(pid, signal.SIGKILL)


def test_the_kernel_kills_the_programs_group_when_the_shim_is_killed(
    shim: Driven,
) -> None:
    script = "trap '' TERM HUP; sleep 600 & echo $! > pid; : > ready; wait"
    program = shim.start("sh", "-c", script)
    shim.appears("ready")
    child = int((shim.directory / "pid").read_text())

    shim.process.kill()

    def alive(pid: int) -> bool:
        found = processes.process(pid)
        return found is not None and not found.zombie

    wait_for(lambda: not alive(program) and not alive(child), "their end")


def test_a_cpu_that_is_not_there_is_the_shims_failure_and_not_the_programs(
    shim: Driven,
) -> None:
    shim.ask("true", cpus=[5000])

    refused = shim.wait(protocol.REFUSED)

    assert refused == [b"%d" % errno.EINVAL, b"", b"sched_setaffinity()"]


def test_a_program_that_is_not_there_is_no_failure_of_the_shims(shim: Driven) -> None:
    shim.ask("/no/such program")

    refused = shim.wait(protocol.REFUSED)

    assert refused == [b"%d" % errno.ENOENT, b"/no/such program", b""]


def test_memory_that_cannot_be_bound_is_told_and_the_program_runs(
    shim: Driven,
) -> None:
    shim.ask("true", memory_nodes=[900])

    *_, is_bound = shim.wait(protocol.STARTED)

    assert is_bound == b"0"
    assert shim.wait(protocol.EXITED)[0] == b"0"


def test_a_stdin_that_did_not_come_is_told(shim: Driven) -> None:
    # The kernel drops a descriptor for which its receiver has no number left.
    shim.ask("true", stdin=protocol.SENT)

    assert shim.wait(protocol.REFUSED) == [
        b"%d" % errno.EMFILE,
        b"",
        b"receiving stdin",
    ]


class Late:
    """A shim that cannot reach poprun, and the lock file of its job."""

    def __init__(self, directory: Path, limit_s: float) -> None:
        self.directory = directory / "poprun-1"
        self.directory.mkdir()
        end_actions = EndActions()
        end_actions.register(RemovePath(os.fsencode(self.directory)))
        self.lock = make_lock(os.fsencode(self.directory), end_actions)
        self.process = subprocess.Popen(
            [sys.executable, "-c", LATE.format(limit_s=limit_s)],
            env={
                "CONTROL": f"@poprun-test-{os.getpid()}/key",
                "TMPDIR": str(self.directory),
            },
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self) -> tuple[int, str]:
        _, err = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, err


def test_a_shim_that_cannot_reach_poprun_leaves_after_the_other_shims(
    tmp_path: Path,
) -> None:
    late = Late(tmp_path, LIMIT_S)
    # The process in which it waits.
    wait_for(lambda: processes.descendants([late.process.pid]), "the shim to wait")
    assert late.directory.exists()

    os.close(late.lock)

    # mpirun takes any other exit code for a failure, and kills the rest.
    assert late.end() == (0, "")
    assert not late.directory.exists()


def test_a_shim_that_cannot_reach_a_living_poprun_fails(tmp_path: Path) -> None:
    late = Late(tmp_path, 0.0)

    assert late.end() == (
        1,
        "The shim of instance 0 cannot reach poprun: Connection refused.\n",
    )
    assert late.directory.exists()
    os.close(late.lock)


def test_a_program_is_not_started_for_a_poprun_that_has_ended(
    drive: Callable[..., Driven], tmp_path: Path
) -> None:
    shim = drive("stopped")
    pid = shim.process.pid
    wait_for(lambda: (p := processes.process(pid)) and p.stopped, "the shim to stop")
    # Or SIGTERM would end it before it has done anything.
    shim.ask("touch", "started", ignored=[signal.SIGTERM])
    shim.poprun.close()
    shim.process.send_signal(signal.SIGCONT)

    assert shim.process.wait(LIMIT_S) == 0
    assert not (tmp_path / "started").exists()


def test_a_fork_that_is_stopped_before_its_exec_ends_with_poprun(
    drive: Callable[..., Driven], tmp_path: Path
) -> None:
    shim = drive("forking")
    shim.ask("touch", "started")
    pid = shim.process.pid
    wait_for(lambda: any(p.stopped for p in processes.descendants([pid])), "the fork")

    shim.poprun.close()

    assert shim.process.wait(LIMIT_S) == 0
    assert not (tmp_path / "started").exists()


def test_a_shim_holds_the_pipe_that_comes_with_the_lock_until_it_ends(
    shim: Driven,
) -> None:
    read, write = os.pipe()
    shim.poprun.send(protocol.pack(protocol.HOLD, b""), (write,))
    os.close(write)
    # It is not the program's stdin, should that be missing.
    shim.ask("cat", stdin=protocol.SENT)
    assert shim.wait(protocol.REFUSED)[0] == b"%d" % errno.EMFILE
    poll = select.poll()
    poll.register(read, 0)
    assert poll.poll(0) == []

    shim.send(protocol.RELEASE)
    shim.process.wait(LIMIT_S)

    assert poll.poll(0) == [(read, select.POLLHUP)]
    os.close(read)


@pytest.mark.parametrize("is_connected", [True, False])
def test_the_end_actions_go_on_when_the_shim_that_performs_them_is_killed(
    tmp_path: Path, is_connected: bool
) -> None:
    directory = tmp_path / "poprun-1"
    directory.mkdir()
    end_actions = EndActions()
    end_actions.register(RemovePath(os.fsencode(directory)))
    slow = run_command(
        purpose="release",
        argv=[b"/bin/sh", b"-c", b": > up; until [ -e go ]; do sleep 0.01; done"],
        environment=[b"PATH=" + os.environb[b"PATH"]],
        timeout_s=LIMIT_S,
    )
    end_actions.register(slow)
    # A shim that is not connected looks only once whether a supervisor lives.
    os.close(make_lock(os.fsencode(directory), end_actions))
    ours, theirs = socket.socketpair()
    if is_connected:
        argv = [sys.executable, "-c", SHIM, str(theirs.fileno())]
        ours.send(protocol.pack(protocol.HOLD, os.fsencode(directory / "supervisors")))
    else:
        argv = [*PYTHON, "shim", "1", "CONTROL", "0"]
    control = f"@poprun-test-{os.getpid()}/key"
    with theirs:
        shim = subprocess.Popen(
            argv,
            pass_fds=[theirs.fileno()],
            env={**os.environ, "CONTROL": control, "TMPDIR": str(directory)},
            cwd=tmp_path,
            start_new_session=True,
        )
    ours.close()
    wait_for((tmp_path / "up").exists, "the end actions to begin")

    os.killpg(shim.pid, signal.SIGKILL)
    shim.wait(LIMIT_S)
    (tmp_path / "go").touch()

    wait_for(lambda: not directory.exists(), "the end actions to end")
