"""mpirun's end of an attempt: what is undone, and what the next attempt keeps."""

import os
import resource
import socket
from pathlib import Path

import pytest
from driven_jobs import GUARD_PID, Driven, Peer

from poprun.helpers import own_process
from poprun.helpers.end_actions import EndActions, RemovePath
from poprun.job.values import Job, Resource
from poprun.supervise import mpirun_process
from poprun.supervise.guard_start import StartedGuard
from poprun.supervise.mpirun_process import MpirunProcess
from poprun.wire import protocol
from poprun.wire.channel import Channel
from poprun.wire.events import Event, GuardLost

ATTEMPTS, JOBS = RemovePath(b"/attempt"), RemovePath(b"/job")


class Resources:
    """One resource of the attempt, and one of the job."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def resource(self, name: str, action: RemovePath) -> Resource:
        def undo() -> bool:
            self.calls.append(f"undo {name}")
            return True

        return Resource(
            make=lambda: self.calls.append(f"make {name}"), end_action=action, undo=undo
        )


@pytest.mark.parametrize("is_last", [True, False])
def test_what_is_the_jobs_is_undone_after_the_last_attempt(
    monkeypatch: pytest.MonkeyPatch, *, is_last: bool
) -> None:
    resources = Resources()
    driven = Driven(
        monkeypatch,
        1,
        attempt_resources=[resources.resource("attempt", ATTEMPTS)],
        job_resources=[resources.resource("job", JOBS)],
    )
    [shim] = driven.run(1)
    shim.exit(0)
    shim.end()
    driven.turn()
    driven.guard.heard()
    ours, theirs = socket.socketpair()
    successor = StartedGuard(
        pid=GUARD_PID + 1, channel=Channel(ours), output=-1, older=frozenset()
    )

    if not is_last:
        driven.mpirun.hand_over(successor)
    driven.guard.say(protocol.MPIRUN_EXITED, 0)
    driven.finish()

    withdrawn = [fields for kind, fields in driven.guard.heard() if fields][:2]
    next_one = Peer(Channel(theirs))
    if is_last:
        assert resources.calls[2:] == ["undo attempt", "undo job"]
        assert next_one.heard() == []
    else:
        assert resources.calls[2:] == ["undo attempt"]
        assert next_one.heard() == messages(EndActions().register(JOBS))
    assert resources.calls[:2] == ["make attempt", "make job"]
    # The guard of this attempt undoes neither.
    gone = [fields for _, fields in messages(EndActions().withdraw(JOBS))]
    gone += [fields for _, fields in messages(EndActions().withdraw(ATTEMPTS))]
    assert sorted(withdrawn) == sorted(gone)
    driven.close()
    ours.close()
    next_one.channel.close()


def test_nothing_is_made_without_a_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    resources = Resources()
    killed, of_killed = socket.socketpair()
    of_killed.close()
    near, far = socket.socketpair()

    def start_another(*arguments: object) -> StartedGuard:
        resources.calls.append("another guard")
        return StartedGuard(
            pid=GUARD_PID + 1, channel=Channel(near), output=-1, older=frozenset()
        )

    monkeypatch.setattr(mpirun_process, "start_guard", start_another)
    monkeypatch.setattr(own_process, "become_subreaper", lambda: None)
    job = Job(
        control="@none/key",
        mark="POPDIST_JOB_ID=abc",
        mpirun=["/bin/mpirun"],
        mpirun_environment={},
        specs=[],
        host_names=[],
        descriptor_limits=resource.getrlimit(resource.RLIMIT_NOFILE),
        attempt_resources=[resources.resource("attempt", ATTEMPTS)],
    )
    output = os.memfd_create("words")
    guard = StartedGuard(
        pid=GUARD_PID, channel=Channel(killed), output=output, older=frozenset()
    )
    mpirun = MpirunProcess(job, guard, "here")
    events: list[Event] = []

    mpirun.start()
    mpirun.report_to(events.append)

    assert resources.calls == ["another guard", "make attempt"]
    assert events == [GuardLost(host="here")]
    mpirun.close()
    far.close()


def messages(data: bytes) -> list[tuple[int, list[bytes]]]:
    return protocol.Decoder().feed(data)


def test_a_lock_file_is_made_when_its_directory_is_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    directory = tmp_path / "job"
    action = RemovePath(os.fsencode(directory))
    driven = Driven(
        monkeypatch,
        1,
        attempt_resources=[Resource(make=directory.mkdir, end_action=action)],
        directory=str(directory),
    )

    lock = directory / "supervisors"
    assert lock.read_bytes() == EndActions().register(action)
    hold = (protocol.HOLD, [os.fsencode(lock)])
    assert hold in driven.guard.heard()
    assert hold in driven.shim(0).heard()
    driven.close()
