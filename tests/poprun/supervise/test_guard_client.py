"""poprun's side of a guard, which is a socket end that the test holds."""

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
from poprun.helpers import processes
from poprun.helpers.end_actions import EndAction, EndActions, RemovePath, RunCommand
from poprun.helpers.job_files import LOCK
from poprun.job.values import Job
from poprun.supervise import mpirun_process
from poprun.supervise.guard_start import StartedGuard
from poprun.supervise.mpirun_process import GuardClient
from poprun.wire import protocol
from poprun.wire.channel import Channel

Messages = list[tuple[int, list[bytes]]]
NO_PROCESS = 4_100_000  # above what the kernel gives
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
            descriptor=ours.detach(),
            output=self.output,
            older=frozenset(),
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


def client_of(guards: Guards, tmp_path: Path, *more: EndAction) -> GuardClient:
    """Return the client of a guard with an end action for the job's directory first."""
    job = Job(
        control="@none/key",
        mark=MARK.decode(),
        mpirun=["/bin/mpirun", "-n", "2"],
        mpirun_environment={b"HOME": b"/root", b"EMPTY": b""},
        specs=[],
        grace=2.5,
        leftovers=["/dev/shm/mpich_"],
        descriptor_limits=resource.getrlimit(resource.RLIMIT_NOFILE),
        directory=str(tmp_path),
    )
    end_actions = [RemovePath(os.fsencode(tmp_path / "job")), *more]
    return GuardClient(guards.start({}), job, end_actions)


@pytest.fixture
def guarding(guards: Guards, tmp_path: Path) -> Iterator[GuardClient]:
    client = client_of(guards, tmp_path)
    yield client
    client.channel.close()


def files(tmp_path: Path) -> Messages:
    remove = [b"remove", os.fsencode(tmp_path / "job")]
    return [(protocol.END_ACTION, remove), (protocol.WATCH, [b"/dev/shm/mpich_"])]


def test_a_guard_knows_the_files_before_anything_else(
    guards: Guards, guarding: GuardClient, tmp_path: Path
) -> None:
    assert guards.heard() == [(protocol.REPORT_TO, []), *files(tmp_path)]


def test_mpirun_is_started_with_the_file_for_its_words(
    guards: Guards, guarding: GuardClient
) -> None:
    guards.heard()

    guarding.start()

    argv = [b"/bin/mpirun", b"-n", b"2"]
    environ = [b"HOME=/root", b"EMPTY="]
    started = [b"2500", MARK, b"0", b"3", *argv, *environ]
    assert guards.heard() == [(protocol.START, started)]
    stderr, output, read, write = guards.far[0].descriptors
    assert os.path.sameopenfile(stderr, 2)
    assert os.path.sameopenfile(output, guards.output)
    # Two ends of one pipe.
    os.write(write, b"x")
    assert os.read(read, 2) == b"x"


def test_what_is_asked_of_a_guard_is_a_message(
    guards: Guards, guarding: GuardClient, tmp_path: Path
) -> None:
    path = os.fsencode(tmp_path / "job")
    guards.heard()

    guarding.withdraw(RemovePath(path))
    guarding.signal_mpirun(NO_PROCESS, signal.SIGKILL)
    guarding.finish()

    assert guards.heard() == [
        (protocol.WITHDRAW, [b"remove", path]),
        (protocol.SIGNAL_MPIRUN, [b"9"]),
        (protocol.FINISH, []),
    ]


def test_the_first_guard_is_the_ancestor_of_all_and_need_not_know_them(
    guards: Guards, guarding: GuardClient
) -> None:
    guards.heard()

    guarding.remember(5, 50)

    assert guards.heard() == []


def test_another_guard_is_told_all_that_the_first_one_knew(
    guards: Guards, guarding: GuardClient, tmp_path: Path
) -> None:
    guarding.make_lock()
    hold_lock = guarding._hold
    guarding.remember(5, 50)
    guarding.remember_leftover(b"/dev/shm/mpich_1")
    guards.heard()

    guarding.replace()

    orders = list(protocol.Decoder().feed(guards.orders[-1]))
    # Children of other tests that still live count as orphans, too.
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
    guarding.remember(6, 60)
    assert guards.heard() == [(protocol.KNOWN, [b"6", b"60"])]
    assert guarding.replaced == 1


def test_a_guard_that_cannot_be_replaced_is_an_error(
    guards: Guards, guarding: GuardClient
) -> None:
    guards.refused = True

    with pytest.raises(LaunchError, match="no"):
        guarding.replace()


def test_behind_another_guard_poprun_signals_mpirun_itself(
    guards: Guards, guarding: GuardClient
) -> None:
    with subprocess.Popen(["sleep", "600"]) as mpirun:
        start = processes.start_time(mpirun.pid)
        guarding.remember(mpirun.pid, start + 1)
        guarding.replace()

        guarding.signal_mpirun(mpirun.pid, signal.SIGKILL)
        assert mpirun.poll() is None  # another process has its number by now
        guarding.remember(mpirun.pid, start)
        guarding.signal_mpirun(mpirun.pid, signal.SIGTERM)

        assert mpirun.wait(200) == -signal.SIGTERM


def test_a_guard_that_is_stopped_goes_on(guards: Guards, guarding: GuardClient) -> None:
    with subprocess.Popen(["sleep", "600"]) as guard:
        guarding.pid = guard.pid
        assert not guarding.keep_running()

        os.kill(guard.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, guard.pid, os.WSTOPPED)

        assert guarding.keep_running()
        os.waitid(os.P_PID, guard.pid, os.WCONTINUED)
        guarding.kill()
        assert guard.wait(200) == -signal.SIGKILL


def test_without_any_guard_the_files_are_poprun_s_to_remove(
    guards: Guards, guarding: GuardClient, tmp_path: Path
) -> None:
    (tmp_path / "job" / "below").mkdir(parents=True)
    # It is this process's child, as what a guard has left is poprun's.
    orphan = os.posix_spawn("/bin/sleep", ["sleep", "600"], {})

    assert guarding.do_without() == []

    assert processes.process(orphan) is None
    assert not (tmp_path / "job").exists()


def test_the_lock_file_has_the_end_actions_and_what_becomes_of_them(
    guards: Guards, tmp_path: Path
) -> None:
    command = RunCommand(purpose="do it", argv=[b"/x"], environment=[], timeout_s=1)
    undone = RemovePath(b"/undone")
    guarding = client_of(guards, tmp_path, command, undone)
    guarding.make_lock()

    guarding.withdraw(undone)

    kept = EndActions()
    kept.read((tmp_path / os.fsdecode(LOCK)).read_bytes())
    assert list(kept) == [RemovePath(os.fsencode(tmp_path / "job")), command]
    guarding.channel.close()


def test_a_guard_may_take_longer_to_finish_with_more_to_undo(
    guards: Guards, guarding: GuardClient, tmp_path: Path
) -> None:
    command = RunCommand(purpose="do it", argv=[b"/x"], environment=[], timeout_s=10)

    longer = client_of(guards, tmp_path, command)

    assert longer.finish_limit_s == guarding.finish_limit_s + 11
    longer.channel.close()
