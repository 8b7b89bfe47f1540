"""mpirun's side of a guard, which is a socket end that the test holds."""

import os
import resource
import select
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from poprun.errors import LaunchError
from poprun.helpers import own_process, processes
from poprun.helpers.end_actions import (
    REMOVE_LIMIT_S,
    EndAction,
    EndActions,
    RemovePath,
    run_command,
)
from poprun.helpers.job_files import LOCK
from poprun.job.values import Job, Resource
from poprun.supervise import mpirun_process
from poprun.supervise.guard_start import StartedGuard
from poprun.supervise.mpirun_process import FINISH_S, MpirunProcess
from poprun.wire import protocol
from poprun.wire.channel import Channel
from poprun.wire.events import Event

Messages = list[tuple[int, list[bytes]]]
NO_PROCESS = 4_200_000  # above what the kernel gives
MARK = b"POPDIST_JOB_ID=abc"


class Guards:
    """What stands for the guards of one job, one after the other."""

    def __init__(self) -> None:
        self.far: list[Channel] = []
        self.orders: list[bytes] = []
        self.environ: Mapping[str, str] = {}
        self.pid = NO_PROCESS
        self.output = os.memfd_create("words")
        self.refused = False
        # What runs below pytest for other tests is none of the job's.
        self.older = frozenset(p.pid for p in processes.descendants([os.getpid()]))

    def start(
        self, environ: Mapping[str, str], words: int | None = None, orders: bytes = b""
    ) -> StartedGuard:
        if self.refused:
            raise LaunchError("no")
        ours, theirs = socket.socketpair()
        self.far.append(Channel(theirs))
        self.orders.append(orders)
        self.environ = environ
        assert words in (None, self.output)
        return StartedGuard(
            pid=self.pid,
            channel=Channel(ours),
            output=self.output,
            older=self.older,
        )

    def heard(self) -> Messages:
        """Return what the present guard has been sent."""
        messages: Messages = []
        while select.select([self.far[-1]], [], [], 0)[0]:
            received = self.far[-1].receive()
            if received is None:
                break
            messages += received
        return messages


@pytest.fixture
def guards(monkeypatch: pytest.MonkeyPatch) -> Iterator[Guards]:
    made = Guards()
    monkeypatch.setattr(mpirun_process, "start_guard", made.start)
    yield made
    for channel in made.far:
        channel.close()
    os.close(made.output)


def mpirun_of(guards: Guards, tmp_path: Path, *more: EndAction) -> MpirunProcess:
    """Return an mpirun whose guard has an end action for the job's directory first."""
    actions = [RemovePath(os.fsencode(tmp_path / "job")), *more]
    job = Job(
        control="@none/key",
        mark=MARK.decode(),
        mpirun=["/bin/mpirun", "-n", "2"],
        mpirun_environment={b"HOME": b"/root", b"EMPTY": b""},
        specs=[],
        host_names=[],
        grace=2.5,
        leftovers=["/dev/shm/mpich_"],
        descriptor_limits=resource.getrlimit(resource.RLIMIT_NOFILE),
        attempt_resources=[
            Resource(make=lambda: None, end_action=action) for action in actions
        ],
        directory=str(tmp_path),
    )
    return MpirunProcess(job, guards.start({}), "here")


@pytest.fixture
def mpirun(
    guards: Guards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[MpirunProcess]:
    monkeypatch.setattr(own_process, "become_subreaper", lambda: None)
    process = mpirun_of(guards, tmp_path)
    yield process
    process._guard.channel.close()


def files(tmp_path: Path) -> Messages:
    remove = [b"remove", os.fsencode(tmp_path / "job")]
    return [(protocol.END_ACTION, remove), (protocol.WATCH, [b"/dev/shm/mpich_"])]


def test_a_guard_knows_the_files_before_anything_else(
    guards: Guards, mpirun: MpirunProcess, tmp_path: Path
) -> None:
    mpirun.start()

    assert guards.heard()[:3] == [(protocol.REPORT_TO, []), *files(tmp_path)]


def test_mpirun_is_started_with_the_file_for_its_words(
    guards: Guards, mpirun: MpirunProcess
) -> None:
    mpirun.start()

    argv = [b"/bin/mpirun", b"-n", b"2"]
    environ = [b"HOME=/root", b"EMPTY="]
    started = [b"2500", MARK, b"0", b"3", *argv, *environ]
    assert guards.heard()[-1] == (protocol.START, started)
    stderr, output, read, write = guards.far[0].descriptors
    assert os.path.sameopenfile(stderr, 2)
    assert os.path.sameopenfile(output, guards.output)
    # Two ends of one pipe.
    os.write(write, b"x")
    assert os.read(read, 2) == b"x"


def test_what_is_asked_of_a_guard_is_a_message(
    guards: Guards, mpirun: MpirunProcess, tmp_path: Path
) -> None:
    path = os.fsencode(tmp_path / "job")
    mpirun._on_start(NO_PROCESS, 1)
    guards.heard()

    mpirun._withdraw(RemovePath(path))
    mpirun.send_signal(signal.SIGKILL)
    mpirun.finish(is_clean=False)

    assert guards.heard() == [
        (protocol.WITHDRAW, [b"remove", path]),
        (protocol.SIGNAL_MPIRUN, [b"9"]),
        (protocol.FINISH, []),
    ]


def test_the_first_guard_is_the_ancestor_of_all_and_need_not_know_them(
    guards: Guards, mpirun: MpirunProcess
) -> None:
    mpirun._on_start(5, 50)

    assert guards.heard() == []


def test_another_guard_is_told_all_that_the_first_one_knew(
    guards: Guards, mpirun: MpirunProcess, tmp_path: Path
) -> None:
    mpirun._make_lock()
    hold_lock = mpirun._hold
    mpirun._remember(5, 50)
    mpirun._on_report(protocol.FOUND, [b"/dev/shm/mpich_1"])
    guards.heard()

    mpirun._replace_guard()

    orders = list(protocol.Decoder().feed(guards.orders[-1]))
    known = [order for order in orders if order[0] == protocol.KNOWN]
    adopt, *removals, watch, hold = [order for order in orders if order not in known]
    assert adopt == (protocol.ADOPT, [b"2500", MARK])
    assert removals == [
        files(tmp_path)[0],
        (protocol.END_ACTION, [b"remove", b"/dev/shm/mpich_1"]),
    ]
    lock = os.fsencode(tmp_path / os.fsdecode(LOCK))
    assert (watch, hold) == (files(tmp_path)[1], (protocol.HOLD, [lock]))
    assert hold_lock == protocol.pack(*hold[:1], *hold[1])
    assert (protocol.KNOWN, [b"5", b"50"]) in known
    assert guards.heard() == [(protocol.REPORT_TO, [])]
    assert guards.environ == {"HOME": "/root", "EMPTY": ""}
    assert guards.far[0].receive() is None  # it is closed
    mpirun._remember(6, 60)
    assert guards.heard() == [(protocol.KNOWN, [b"6", b"60"])]


def test_a_guard_that_cannot_be_replaced_is_an_error(
    guards: Guards, mpirun: MpirunProcess
) -> None:
    guards.refused = True

    with pytest.raises(LaunchError, match="no"):
        mpirun._replace_guard()


def test_behind_another_guard_poprun_signals_mpirun_itself(
    guards: Guards, mpirun: MpirunProcess
) -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        start = processes.start_time(process.pid)
        mpirun._on_start(process.pid, start + 1)
        mpirun._replace_guard()

        mpirun.send_signal(signal.SIGKILL)
        assert process.poll() is None  # another process has its number by now
        mpirun._remember(process.pid, start)
        mpirun.send_signal(signal.SIGTERM)

        assert process.wait(200) == -signal.SIGTERM


def test_a_guard_that_is_stopped_goes_on(guards: Guards, tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "600"]) as guard:
        guards.pid = guard.pid
        mpirun = mpirun_of(guards, tmp_path)
        assert not mpirun._continue_guard()

        os.kill(guard.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, guard.pid, os.WSTOPPED)

        assert mpirun._continue_guard()
        os.waitid(os.P_PID, guard.pid, os.WCONTINUED)
        guard.kill()
        mpirun._guard.channel.close()


def test_without_any_guard_the_files_are_poprun_s_to_remove(
    guards: Guards, mpirun: MpirunProcess, tmp_path: Path
) -> None:
    (tmp_path / "job" / "below").mkdir(parents=True)
    # It is this process's child, as what a guard has left is poprun's.
    orphan = os.posix_spawn("/bin/sleep", ["sleep", "600"], {})

    events: list[Event] = []
    mpirun.report_to(events.append)

    mpirun._end_without_guard()

    assert events == []
    assert processes.process(orphan) is None
    assert not (tmp_path / "job").exists()


def test_the_lock_file_has_the_end_actions_and_what_becomes_of_them(
    guards: Guards, tmp_path: Path
) -> None:
    command = run_command(purpose="do it", argv=[b"/x"], environment=[], timeout_s=1)
    undone = RemovePath(b"/undone")
    mpirun = mpirun_of(guards, tmp_path, command, undone)
    mpirun._make_lock()

    mpirun._withdraw(undone)

    kept = EndActions()
    kept.read((tmp_path / os.fsdecode(LOCK)).read_bytes())
    assert list(kept) == [RemovePath(os.fsencode(tmp_path / "job")), command]
    mpirun._guard.channel.close()


def test_a_guard_may_take_longer_to_finish_with_more_to_undo(
    guards: Guards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "reap", lambda **_: [])
    command = run_command(purpose="do it", argv=[b"/x"], environment=[], timeout_s=10)
    with subprocess.Popen(["sleep", "600"]) as guard:
        guards.pid = guard.pid
        mpirun = mpirun_of(guards, tmp_path, command)
        mpirun.finish(is_clean=False)
        limit = mpirun._finish_began + FINISH_S + REMOVE_LIMIT_S + 11

        mpirun.tick(limit - 1)
        assert guard.poll() is None
        mpirun.tick(limit)

        assert mpirun.finished
        assert guard.wait(200) == -signal.SIGKILL
        mpirun._guard.channel.close()
