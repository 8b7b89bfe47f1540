"""mpirun's end of an attempt: what is undone, and what the next attempt keeps."""

import os
import socket
from pathlib import Path

import pytest
from driven_jobs import GUARD_PID, Driven, Peer

from poprun.helpers import protocol
from poprun.helpers.channel import Channel
from poprun.helpers.end_actions import EndActions, RemovePath
from poprun.job.guard_start import StartedGuard
from poprun.job.values import Resource

ATTEMPTS, JOBS = RemovePath(b"/attempt"), RemovePath(b"/job")


class Resources:
    """One resource of the attempt, and one of the job."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def resource(self, name: str, action: RemovePath) -> Resource:
        def undo() -> bool:
            self.calls.append(f"undo {name}")
            return True

        return Resource(lambda: self.calls.append(f"make {name}"), action, undo)


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
    successor = StartedGuard(GUARD_PID + 1, ours.fileno(), -1, frozenset())

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
        attempt_resources=[Resource(directory.mkdir, action)],
        directory=str(directory),
    )

    lock = directory / "supervisors"
    assert lock.read_bytes() == EndActions().register(action)
    hold = (protocol.HOLD, [os.fsencode(lock)])
    assert hold in driven.guard.heard()
    assert hold in driven.shim(0).heard()
    driven.close()
