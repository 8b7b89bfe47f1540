"""A guard without poprun and mpirun: driven over a socket pair, as poprun would."""

import errno
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from conftest import wait_for
from deaths import command_line

from poprun.helpers import processes
from poprun.helpers.end_actions import EndActions, RemovePath, run_command
from poprun.helpers.helper_commands import PYTHON
from poprun.helpers.job_files import make_lock
from poprun.wire import protocol
from poprun.wire.channel import Channel

LIMIT_S = 200.0
MARK = f"POPRUN_TEST_GUARD={os.getpid()}".encode()


# A guard whose forks are stopped before their exec.
FORKING = """
import os, signal, sys
from poprun.helpers import guard, own_process
own_process.default_signals = lambda: os.kill(os.getpid(), signal.SIGSTOP)
guard.main(sys.argv[1:])
"""

# A guard to which the kernel gives no pidfd.
WITHOUT_PIDFD = """
import errno, os, sys
from poprun.helpers import guard, processes
def refuse(pid):
    raise OSError(errno.EPERM, "refused")
os.pidfd_open = refuse
processes.kill = lambda found: os.close(os.open("killed", os.O_CREAT))
guard.main(sys.argv[1:])
"""

# A guard to which inotify gives no watch: signals tell it of files, or it looks.
WITHOUT_WATCH = """
import sys
from poprun.helpers import guard, job_files, own_process
own_process.watch = lambda directories: (-1, {})
%s
guard.main(sys.argv[1:])
"""
SIGNALS_ONLY = WITHOUT_WATCH % "job_files._UNWATCHED_LOOK_S = 600.0"
LOOKS_ONLY = WITHOUT_WATCH % "own_process.signal_new_files = lambda places: None"

# A guard that gives known processes long to end.
PATIENT = """
import sys
from poprun.helpers import guard
guard.SHIM_GRACE_S = 200.0
guard.main(sys.argv[1:])
"""

# A guard that goes on only when there is a file, after it has looked at the processes.
LOOKING = """
import os, sys, time
from poprun.helpers import guard, processes
end = processes.end
def end_later(*arguments, **options):
    os.close(os.open("looked", os.O_CREAT))
    while not os.path.exists("killed"):
        time.sleep(0.01)
    return end(*arguments, **options)
processes.end = end_later
guard.main(sys.argv[1:])
"""


class Driven:
    """A guard, and poprun's end of the socket to it."""

    def __init__(
        self, directory: Path, words: Sequence[str] = (*PYTHON[1:], "guard")
    ) -> None:
        ours, theirs = socket.socketpair()
        self.directory = directory
        self.output = os.memfd_create("mpirun")
        self.pipe_read, self.pipe_write = os.pipe()
        numbers = theirs.fileno(), os.getpid(), os.fstat(ours.fileno()).st_ino
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, *words, *map(str, numbers)],
                pass_fds=[theirs.fileno()],
                cwd=directory,
                start_new_session=True,
            )
        self.poprun = Channel(ours)
        self._came: list[tuple[int, list[bytes]]] = []

    def send(self, kind: int, *fields: bytes | int) -> None:
        self.poprun.send(protocol.pack(kind, *fields))

    def start(self, *argv: str, grace: float = 1.0, **environ: str) -> int:
        """Let it start what stands for mpirun, and return that one's pid."""
        self.ask(*argv, grace=grace, **environ)
        return int(self.wait(protocol.MPIRUN_STARTED)[0])

    def ask(
        self,
        *argv: str,
        grace: float = 1.0,
        is_in_slurm: bool = False,
        **environ: str,
    ) -> None:
        variables = {"PATH": os.environ["PATH"], **environ}
        message = protocol.pack(
            protocol.START,
            int(grace * 1000),
            MARK,
            int(is_in_slurm),
            len(argv),
            *map(os.fsencode, argv),
            *(f"{name}={value}".encode() for name, value in variables.items()),
        )
        self.poprun.send(message, (self.output, self.pipe_read, self.pipe_write))

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
                assert messages is not None, "the guard is gone"
                self._came += messages
        raise AssertionError(f"no message of kind {kind} in {LIMIT_S} s")

    def appears(self, *names: str) -> None:
        for name in names:
            wait_for((self.directory / name).exists, f"the file {name}")

    def end(self) -> int:
        """Close poprun's end; return the guard's exit status."""
        self.poprun.close()
        return self.process.wait(LIMIT_S)

    def close(self) -> None:
        self.end()
        for descriptor in (self.output, self.pipe_read, self.pipe_write):
            with suppress(OSError):  # a test has closed it
                os.close(descriptor)


@pytest.fixture
def guard(tmp_path: Path) -> Iterator[Driven]:
    driven = Driven(tmp_path)
    yield driven
    driven.close()


def pids(guard: Driven, *names: str) -> list[int]:
    guard.appears(*names)
    return [int((guard.directory / name).read_text()) for name in names]


def lives(pid: int) -> bool:
    entry = processes.process(pid)
    return entry is not None and not entry.zombie


# A process that obeys no signal, one in a session and with an environment of its own,
# and both their numbers.
STUBBORN = (
    "trap '' TERM INT HUP; (env -i setsid sh -c 'echo $$ > d && mv d daemon; "
    "exec sleep 600' &); echo $$ > o && mv o own; while :; do sleep 1; done"
)


# --- mpirun.


@pytest.mark.parametrize(
    ("soft", "hard", "mpirun"),
    [(64, 256, 256), (64, 18000, 16384), (17000, 18000, 17000)],
)
def test_mpirun_may_have_as_many_files_as_it_needs_and_not_all(
    soft: int, hard: int, mpirun: int
) -> None:
    program = (
        "import resource\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))\n"
        "from poprun.helpers.guard import _raise_open_files\n"
        "_raise_open_files()\n"
        "print(*resource.getrlimit(resource.RLIMIT_NOFILE))\n"
    )

    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert output.stdout == f"{mpirun} {hard}\n"


def test_mpirun_gets_the_words_the_environment_and_the_file(guard: Driven) -> None:
    pid = guard.start("/bin/sh", "-c", 'echo "$NAME $0"; echo no >&2', "x y", NAME="a")

    assert guard.wait(protocol.MPIRUN_EXITED) == [b"0"]
    assert os.pread(guard.output, 100, 0) == b"a x y\nno\n"
    assert not lives(pid)


def test_mpirun_s_input_has_no_data_and_no_end(guard: Driven) -> None:
    look = "import select; print(select.select([0], [], [], 0)[0])"
    guard.start(sys.executable, "-c", look)

    assert guard.wait(protocol.MPIRUN_EXITED) == [b"0"]
    assert os.pread(guard.output, 100, 0) == b"[]\n"


@pytest.mark.parametrize(
    ("script", "status"), [("exit 3", 3 << 8), ("kill -9 $$", signal.SIGKILL)]
)
def test_mpiruns_end_is_told_as_waitpid_has_it(
    guard: Driven, script: str, status: int
) -> None:
    guard.start("/bin/sh", "-c", script)

    assert guard.wait(protocol.MPIRUN_EXITED) == [b"%d" % status]


def test_an_mpirun_that_cannot_run_is_refused_with_the_errno(guard: Driven) -> None:
    guard.ask(f"{guard.directory}/missing")

    assert guard.wait(protocol.MPIRUN_REFUSED) == [b"%d" % errno.ENOENT, b""]


def test_an_mpirun_that_is_stopped_before_its_exec_ends_with_poprun(
    tmp_path: Path,
) -> None:
    guard = Driven(tmp_path, ("-c", FORKING))
    guard.ask("/bin/sleep", "600")
    pid = guard.process.pid
    wait_for(lambda: any(p.stopped for p in processes.descendants([pid])), "the fork")

    guard.close()

    assert guard.process.returncode == 0


def test_a_guard_without_a_pidfd_takes_poprun_for_alive(tmp_path: Path) -> None:
    guard = Driven(tmp_path, ("-c", WITHOUT_PIDFD))
    # The guard answers, so that it has tried before.
    guard.start("/bin/true")
    has_killed = (tmp_path / "killed").exists()
    guard.close()

    assert not has_killed


def test_mpirun_does_not_get_the_signal_by_which_slurm_ends_a_job(
    guard: Driven,
) -> None:
    guard.ask("/bin/sleep", "600", is_in_slurm=True)
    pid = int(guard.wait(protocol.MPIRUN_STARTED)[0])

    status = Path(f"/proc/{pid}/status").read_text()
    [blocked] = [s for s in status.splitlines() if s.startswith("SigBlk:")]
    assert int(blocked.split()[1], 16) == 1 << signal.SIGTERM - 1


def test_an_mpirun_without_its_file_is_refused(guard: Driven) -> None:
    guard.send(protocol.START, 0, MARK, 0, 1, b"/bin/true")

    refused = guard.wait(protocol.MPIRUN_REFUSED)
    assert refused == [b"%d" % errno.EMFILE, b"recvmsg()"]


def test_a_signal_for_mpirun_gets_there(guard: Driven) -> None:
    guard.start("/bin/sleep", "600")

    guard.send(protocol.SIGNAL_MPIRUN, signal.SIGTERM)

    assert guard.wait(protocol.MPIRUN_EXITED) == [b"%d" % signal.SIGTERM]


def test_mpirun_is_killed_when_no_supervisor_has_the_pipe_any_more(
    guard: Driven,
) -> None:
    mpirun = guard.start("/bin/sh", "-c", "trap '' TERM; : > up; sleep 600; :")
    guard.appears("up")
    guard.process.kill()
    guard.process.wait(LIMIT_S)
    assert lives(mpirun)

    os.close(guard.pipe_write)

    wait_for(lambda: not lives(mpirun), "mpirun to be killed")


def test_mpirun_lives_as_long_as_its_guard(guard: Driven) -> None:
    guard.start("/bin/sh", "-c", "until [ -e go ]; do sleep 0.01; done; exit 3")

    os.close(guard.pipe_write)
    (guard.directory / "go").touch()

    assert guard.wait(protocol.MPIRUN_EXITED) == [b"%d" % (3 << 8)]


# --- The end.


def test_finish_ends_what_is_left_and_says_how_much(guard: Driven) -> None:
    guard.start("/bin/sh", "-c", f"({STUBBORN}) & until [ -e own ]; do :; done")
    left = pids(guard, "daemon", "own")
    guard.wait(protocol.MPIRUN_EXITED)

    guard.send(protocol.FINISH)

    # The shell that obeys nothing, and the daemon. The shell's sleep comes and goes.
    assert int(guard.wait(protocol.FINISHED)[0]) >= 2
    assert guard.process.wait(LIMIT_S) == 0
    assert not any(map(lives, left))


def test_with_poprun_its_tree_ends(guard: Driven) -> None:
    mpirun = guard.start("/bin/sh", "-c", STUBBORN)
    left = pids(guard, "daemon", "own")

    assert guard.end() == 0

    assert not any(map(lives, [mpirun, *left]))


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_guard_that_is_stopped_goes_on_without_poprun(
    guard: Driven, when: str
) -> None:
    script = "trap '' TERM; : > up; until [ -e go ]; do sleep 0.01; done"
    guard.start("/bin/sh", "-c", script)
    guard.appears("up")

    # Its parent, which is not poprun here, stays.
    if when == "after":
        guard.poprun.close()
    guard.process.send_signal(signal.SIGSTOP)
    guard.poprun.close()
    (guard.directory / "go").touch()

    assert guard.process.wait(LIMIT_S) == 0


def test_a_message_that_makes_no_sense_is_the_end_of_poprun(guard: Driven) -> None:
    mpirun = guard.start("/bin/sleep", "600")

    guard.poprun.send(b"\0\0\0\0")

    assert guard.process.wait(LIMIT_S) == 0
    assert not lives(mpirun)


@pytest.mark.parametrize("finish", [True, False])
def test_what_it_is_to_remove_is_removed_at_the_last(
    guard: Driven, finish: bool
) -> None:
    (guard.directory / "job" / "below").mkdir(parents=True)
    (guard.directory / "file").touch()
    paths = [os.fsencode(guard.directory / name) for name in ("job", "file", "never")]
    for path in paths:
        guard.send(protocol.END_ACTION, b"remove", path)
    # It goes on writing until it is killed.
    guard.start("/bin/sh", "-c", "touch up; while :; do mkdir -p job; :> job/x; done")
    guard.appears("up")
    assert (guard.directory / "job").exists()

    if finish:
        guard.send(protocol.FINISH)
        guard.wait(protocol.FINISHED)
    else:
        guard.end()

    assert guard.process.wait(LIMIT_S) == 0
    assert sorted(os.listdir(guard.directory)) == ["up"]


def test_a_guard_goes_on_when_the_disk_of_the_lock_is_full(guard: Driven) -> None:
    lock, place = guard.directory / "lock", guard.directory / "place"
    lock.touch()
    place.mkdir()
    guard.send(protocol.HOLD, os.fsencode(lock))
    guard.send(protocol.WATCH, os.fsencode(place / "shm_"))
    # The guard answers, so that it has read what came before.
    guard.start(
        "/bin/sh", "-c", "until [ -e full ]; do :; done; exec sleep 600 3>place/shm_1"
    )
    resource.prlimit(guard.process.pid, resource.RLIMIT_FSIZE, (0, 0))

    (guard.directory / "full").touch()

    assert guard.wait(protocol.FOUND) == [os.fsencode(place / "shm_1")]
    guard.send(protocol.FINISH)
    guard.wait(protocol.FINISHED)
    assert not (place / "shm_1").exists()
    assert lock.read_bytes() == b""


@pytest.mark.parametrize("source", [SIGNALS_ONLY, LOOKS_ONLY], ids=["signals", "looks"])
def test_a_guard_without_a_watch_finds_files_while_a_process_has_them_open(
    tmp_path: Path, source: str
) -> None:
    guard = Driven(tmp_path, ("-c", source))
    guard.send(protocol.WATCH, os.fsencode(tmp_path / "shm_"))

    # It makes the file when the guard has nothing else to do.
    guard.start("/bin/sh", "-c", "sleep 1; exec sleep 600 3>shm_1")
    found = guard.wait(protocol.FOUND)
    guard.send(protocol.FINISH)
    guard.wait(protocol.FINISHED)
    guard.close()

    assert found == [os.fsencode(tmp_path / "shm_1")]
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("finish", [True, False])
def test_a_guard_undoes_what_killed_jobs_have_left_in_all_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finish: bool
) -> None:
    # The job itself makes nothing there.
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    guard = Driven(tmp_path)
    abandoned = tmp_path / "poprun-1"
    abandoned.mkdir()
    end_actions = EndActions()
    end_actions.register(RemovePath(os.fsencode(abandoned)))
    os.close(make_lock(os.fsencode(abandoned), end_actions))

    if finish:
        guard.send(protocol.FINISH)
        guard.wait(protocol.FINISHED)
    guard.close()

    assert os.listdir(tmp_path) == []


def write_word(directory: Path, word: str) -> list[bytes]:
    """Return an end action that appends a word to a file."""
    action = run_command(
        purpose="write",
        argv=[b"/bin/sh", b"-c", f"echo {word} >> {directory}/words".encode()],
        environment=[],
        timeout_s=LIMIT_S,
    )
    return [b"run", *action.fields]


@pytest.mark.parametrize("finish", [True, False])
def test_end_actions_are_performed_when_the_tree_has_ended(
    guard: Driven, finish: bool
) -> None:
    for word in ("first", "withdrawn", "last"):
        guard.send(protocol.END_ACTION, *write_word(guard.directory, word))
    guard.send(protocol.WITHDRAW, *write_word(guard.directory, "withdrawn"))
    script = "trap 'echo ended >> words; exit' TERM; : > up; while :; do :; done"
    guard.start("/bin/sh", "-c", script, grace=LIMIT_S)
    guard.appears("up")

    if finish:
        guard.send(protocol.FINISH)
        guard.wait(protocol.FINISHED)
        assert guard.process.wait(LIMIT_S) == 0
    else:
        # It is killed at once then: see shims, which end programs first.
        guard.end()

    words = (guard.directory / "words").read_text().split()
    assert words[-2:] == ["last", "first"]
    assert words[:-2] == (["ended"] if finish else [])


def test_an_end_action_that_fails_is_reported_before_the_end(guard: Driven) -> None:
    action = run_command(
        purpose="release p0", argv=[b"/bin/false"], environment=[], timeout_s=LIMIT_S
    )
    guard.send(protocol.END_ACTION, b"run", *action.fields)

    guard.send(protocol.FINISH)

    sentence = b"Could not release p0: /bin/false exited with 1."
    assert guard.wait(protocol.NOT_UNDONE) == [sentence]
    guard.wait(protocol.FINISHED)


def test_without_poprun_a_failure_is_written_where_its_stderr_was(
    guard: Driven,
) -> None:
    action = run_command(
        purpose="release p0", argv=[b"/bin/false"], environment=[], timeout_s=LIMIT_S
    )
    with (guard.directory / "stderr").open("wb") as stderr:
        message = protocol.pack(protocol.REPORT_TO)
        guard.poprun.send(message, (stderr.fileno(),))
    guard.send(protocol.END_ACTION, b"run", *action.fields)

    assert guard.end() == 0

    assert (guard.directory / "stderr").read_text() == (
        "poprun: Could not release p0: /bin/false exited with 1.\n"
    )


def test_a_full_pipe_does_not_keep_the_guard_from_ending(guard: Driven) -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    with suppress(BlockingIOError):
        while True:
            os.write(write, bytes(4096))
    os.set_blocking(write, True)
    guard.poprun.send(protocol.pack(protocol.REPORT_TO), (write,))
    action = run_command(
        purpose="do it", argv=[b"/bin/false"], environment=[], timeout_s=LIMIT_S
    )
    guard.send(protocol.END_ACTION, b"run", *action.fields)

    assert guard.end() == 0

    os.close(read)
    os.close(write)


# --- Processes that it has not started: it has taken another guard's place.


@pytest.mark.parametrize("finish", [True, False])
def test_known_processes_end_with_all_that_is_below_them(
    guard: Driven, finish: bool
) -> None:
    with subprocess.Popen(["sh", "-c", STUBBORN], cwd=guard.directory) as known:
        [own] = pids(guard, "own")
        guard.send(protocol.ADOPT, 0, MARK)
        guard.send(protocol.KNOWN, own, processes.start_time(own))

        if finish:
            guard.send(protocol.FINISH)
            guard.wait(protocol.FINISHED)
        else:
            guard.end()

        assert known.wait(LIMIT_S) == -signal.SIGKILL
        [daemon] = pids(guard, "daemon")
        os.kill(daemon, signal.SIGKILL)  # not below it, and without the mark


def test_known_processes_get_the_grace_to_end_by_themselves(tmp_path: Path) -> None:
    guard = Driven(tmp_path, ("-c", PATIENT))
    script = ": > up; sleep 0.3; echo done > words"
    with subprocess.Popen(["sh", "-c", script], cwd=guard.directory) as known:
        guard.appears("up")
        guard.send(protocol.ADOPT, int(LIMIT_S * 1000), MARK)
        guard.send(protocol.KNOWN, known.pid, processes.start_time(known.pid))

        guard.close()

        assert known.wait(LIMIT_S) == 0


# A subreaper, as shims are; below it the script.
SUPERVISOR = """
import subprocess, sys, time
from poprun.helpers import own_process, processes
own_process.become_subreaper()
subprocess.Popen(["sh", "-c", sys.argv[1]])
while True:
    processes.reap()
    time.sleep(0.001)
"""


def test_known_processes_end_when_nothing_is_below_them(guard: Driven) -> None:
    word = f"600.{os.getpid()}1"
    forever = f"while :; do (env -i setsid sleep {word} &); done"
    forks = f": > up; for i in 1 2 3 4; do ({forever}) & done; wait"
    with subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, forks],
        cwd=guard.directory,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    ) as known:
        guard.appears("up")
        guard.send(protocol.ADOPT, 0, MARK)
        guard.send(protocol.KNOWN, known.pid, processes.start_time(known.pid))

        guard.end()

        assert known.wait(LIMIT_S) == -signal.SIGKILL
    left = [p for p in psutil.process_iter() if word in command_line(p.pid)]
    for process in left:
        process.kill()
    assert left == []


def test_what_was_below_a_known_process_ends_when_another_has_killed_that(
    tmp_path: Path,
) -> None:
    guard = Driven(tmp_path, ("-c", LOOKING))
    with subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, STUBBORN],
        cwd=guard.directory,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    ) as known:
        [daemon] = pids(guard, "daemon")
        guard.send(protocol.ADOPT, 1000, MARK)
        guard.send(protocol.KNOWN, known.pid, processes.start_time(known.pid))
        guard.poprun.close()
        guard.appears("looked")
        # As mpirun does with a shim when another one has failed.
        known.kill()
        known.wait(LIMIT_S)
        (tmp_path / "killed").touch()

        assert guard.process.wait(LIMIT_S) == 0
    guard.close()

    assert not lives(daemon)


def test_a_process_that_has_got_a_known_number_since_lives(guard: Driven) -> None:
    with subprocess.Popen(["sleep", "600"]) as other:
        guard.send(protocol.ADOPT, 0, MARK)
        guard.send(protocol.KNOWN, other.pid, processes.start_time(other.pid) + 1)

        assert guard.end() == 0

        assert other.poll() is None
        other.kill()


def test_without_poprun_the_mark_ends_what_is_in_no_tree(guard: Driven) -> None:
    name, _, value = MARK.decode().partition("=")
    with subprocess.Popen(["sleep", "600"], env={**os.environ, name: value}) as marked:
        # Popen returns before the kernel shows the environment.
        wait_for(lambda: bool(processes.with_variable(MARK)), "its environment")
        guard.send(protocol.ADOPT, 0, MARK)

        assert guard.end() == 0

        assert marked.wait(LIMIT_S) == -signal.SIGKILL


def test_without_poprun_the_mark_ends_what_is_below_it(guard: Driven) -> None:
    name, _, value = MARK.decode().partition("=")
    with subprocess.Popen(
        ["sh", "-c", "env -i setsid sh -c 'echo $$ > d; mv d daemon; sleep 600'; :"],
        env={**os.environ, name: value},
        cwd=guard.directory,
    ):
        [daemon] = pids(guard, "daemon")
        guard.send(protocol.ADOPT, 0, MARK)

        assert guard.end() == 0

        assert not lives(daemon)
