import errno
import fcntl
import os
import subprocess
import time
from collections.abc import Iterator
from math import inf
from pathlib import Path
from unittest import mock

import pytest
from conftest import wait_for

from poprun.helpers import job_files
from poprun.helpers.end_actions import EndActions, RemovePath, run_command
from poprun.helpers.job_files import (
    LOCK,
    Leftovers,
    hold,
    job_directories,
    make_lock,
    open_files,
    undo_abandoned,
    undo_if_last,
)

# --- Files that lie where all users' files are.


@pytest.fixture
def member(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process of the job: has a file open that MPI has made."""
    words, ours = ["sh", "-c", "exec sleep 600 3>shm_ours"], tmp_path / "shm_ours"
    with subprocess.Popen(words, cwd=tmp_path) as it:
        # The file exists before the process has it open.
        wait_for(lambda: os.fsencode(ours) in open_files(it.pid), "the file")
        yield it
        it.kill()


@pytest.mark.parametrize("watched_first", [True, False])
def test_a_file_is_the_jobs_if_a_process_of_the_job_has_it_open(
    watched_first: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    leftovers = Leftovers()
    prefixes = [os.fsencode(tmp_path / "shm_")]
    if watched_first:
        leftovers.watch(prefixes)
    member = request.getfixturevalue("member")
    for neighbours in ("shm_theirs", "other"):
        (tmp_path / neighbours).touch()
    if not watched_first:
        leftovers.watch(prefixes)

    leftovers.read_events()

    assert leftovers.has_unclaimed
    ours = os.fsencode(tmp_path / "shm_ours")
    assert leftovers.claim([member.pid, os.getpid()]) == [ours]
    assert leftovers.paths == [ours]


def test_a_file_that_no_process_of_the_job_has_open_is_another_jobs(
    tmp_path: Path,
) -> None:
    leftovers = Leftovers()
    leftovers.watch([os.fsencode(tmp_path / "shm_")])
    (tmp_path / "shm_theirs").touch()
    leftovers.read_events()
    assert leftovers.has_unclaimed

    with mock.patch.object(job_files, "OPEN_TIMEOUT_S", 0.0):
        assert leftovers.claim([os.getpid()]) == []

    assert (leftovers.has_unclaimed, leftovers.paths) == (False, [])


def test_a_file_that_a_process_opens_late_is_claimed_by_another_look(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    leftovers = Leftovers()
    ours = tmp_path / "shm_ours"
    ours.touch()
    leftovers.watch([os.fsencode(tmp_path / "shm_")])
    with mock.patch.object(job_files, "OPEN_TIMEOUT_S", 0.0):
        leftovers.claim([os.getpid()])
    member = request.getfixturevalue("member")
    leftovers.check_all()
    assert not leftovers.has_unclaimed

    leftovers.check_all(again=True)

    assert leftovers.claim([member.pid]) == [os.fsencode(ours)]


def test_files_of_other_jobs_are_looked_at_less_and_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_files, "OPEN_TIMEOUT_S", inf)
    leftovers = Leftovers()
    leftovers.watch([os.fsencode(tmp_path / "shm_")])
    assert leftovers.look_again_s() is None
    (tmp_path / "shm_theirs").touch()
    found_at = time.monotonic()
    leftovers.read_events()

    first = leftovers.look_again_s()
    assert first is not None
    time.sleep(5 * first)
    leftovers.claim([os.getpid()])

    assert leftovers.has_unclaimed
    second = leftovers.look_again_s()
    assert second is not None
    assert 5 * first <= second <= time.monotonic() - found_at


def test_other_jobs_files_do_not_keep_new_ones_from_being_checked(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    leftovers = Leftovers()
    (tmp_path / "shm_theirs").touch()
    leftovers.watch([os.fsencode(tmp_path / "shm_")])
    assert leftovers.has_unclaimed
    member = request.getfixturevalue("member")

    leftovers.check_all()

    assert leftovers.claim([member.pid]) == [os.fsencode(tmp_path / "shm_ours")]


def test_a_file_that_is_known_is_not_looked_up_again(
    tmp_path: Path, member: subprocess.Popen[bytes]
) -> None:
    leftovers = Leftovers()
    leftovers.watch([os.fsencode(tmp_path / "shm_")])
    leftovers.claim([member.pid])

    leftovers.check_all()

    assert not leftovers.has_unclaimed


def test_who_has_gone_claims_nothing(tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    leftovers = Leftovers()
    (tmp_path / "shm_theirs").touch()
    leftovers.watch([os.fsencode(tmp_path / "shm_")])

    assert leftovers.claim([gone.pid]) == []


# --- Jobs whose supervisors have died.


def make_job(place: Path) -> tuple[Path, int]:
    directory, cache = place / "poprun-1", place / "cache"
    directory.mkdir()
    cache.mkdir()
    end_actions = EndActions()
    for path in (directory, cache):
        end_actions.register(RemovePath(os.fsencode(path)))
    return directory, make_lock(os.fsencode(directory), end_actions)


def test_files_stay_as_long_as_one_supervisor_lives(tmp_path: Path) -> None:
    directory, lock = make_job(tmp_path)
    path = os.fsencode(directory / os.fsdecode(LOCK))
    another = hold(path)

    os.close(lock)
    assert undo_if_last(path) is None
    assert undo_if_last(path) is None
    undo_abandoned([os.fsencode(tmp_path)])
    assert sorted(os.listdir(tmp_path)) == ["cache", "poprun-1"]

    os.close(another)
    assert undo_if_last(path) == []
    assert os.listdir(tmp_path) == []
    assert undo_if_last(path) is None
    assert hold(path) == -1


def test_supervisors_hold_a_lock_that_a_full_disk_has_left_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as full:
        full.setattr(os, "write", mock.Mock(side_effect=OSError(errno.ENOSPC, "full")))
        directory, lock = make_job(tmp_path)
    path = os.fsencode(directory / os.fsdecode(LOCK))
    shims = hold(path)
    os.close(lock)
    assert undo_if_last(path) is None

    os.close(shims)

    assert undo_if_last(path) == []
    assert os.listdir(tmp_path) == ["cache"]


def test_what_a_guard_has_found_goes_with_the_rest(tmp_path: Path) -> None:
    directory, lock = make_job(tmp_path)
    guards = hold(os.fsencode(directory / os.fsdecode(LOCK)))
    (tmp_path / "segment").touch()
    segment = RemovePath(os.fsencode(tmp_path / "segment"))
    os.write(guards, EndActions().register(segment))
    os.close(lock)
    os.close(guards)

    undo_abandoned([os.fsencode(tmp_path), b"/nowhere"])

    assert os.listdir(tmp_path) == []


def test_a_directory_without_a_lock_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "poprun-2").mkdir()
    (tmp_path / "poprun-3").symlink_to(tmp_path / "poprun-2")

    undo_abandoned([os.fsencode(tmp_path)])

    assert sorted(os.listdir(tmp_path)) == ["poprun-2", "poprun-3"]


def test_a_link_to_a_directory_with_a_lock_is_not_followed(tmp_path: Path) -> None:
    directory, lock = make_job(tmp_path)
    os.close(lock)
    place = tmp_path / "place"
    place.mkdir()
    (place / "poprun-9").symlink_to(directory)

    undo_abandoned([os.fsencode(place)])

    assert directory.exists()


def test_what_another_performs_meanwhile_is_not_performed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, lock = make_job(tmp_path)
    path = os.fsencode(directory / os.fsdecode(LOCK))
    words = tmp_path / "words"
    action = run_command(
        purpose="write",
        argv=[b"/bin/sh", b"-c", f"echo done >> {words}".encode()],
        environment=[],
        timeout_s=200,
    )
    os.write(lock, EndActions().register(action))
    os.close(lock)
    flock = fcntl.flock

    def another_first(own: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        assert undo_if_last(path) == []
        flock(own, operation)

    monkeypatch.setattr(fcntl, "flock", another_first)

    assert undo_if_last(path) is None

    assert words.read_text() == "done\n"


# --- The lock file holds commands, so that only this user's are run.


def test_the_last_supervisor_performs_end_actions_and_reports_failures(
    tmp_path: Path,
) -> None:
    directory, lock = make_job(tmp_path)
    for script in (f"test -e {directory} && echo yes > {tmp_path}/done", "exit 3"):
        action = run_command(
            purpose="do it",
            argv=[b"/bin/sh", b"-c", script.encode()],
            environment=[],
            timeout_s=200,
        )
        os.write(lock, EndActions().register(action))
    os.close(lock)

    failures = undo_abandoned([os.fsencode(tmp_path)])

    assert failures == ["Could not do it: /bin/sh exited with 3."]
    # The job's directory goes last.
    assert (tmp_path / "done").read_text() == "yes\n"
    assert os.listdir(tmp_path) == ["done"]


@pytest.mark.parametrize("writable", ["directory", "lock"])
@pytest.mark.parametrize("mode", [0o720, 0o702])
def test_a_lock_that_others_may_have_written_is_not_obeyed(
    writable: str, mode: int, tmp_path: Path
) -> None:
    directory, lock = make_job(tmp_path)
    os.close(lock)
    path = directory / os.fsdecode(LOCK)
    (directory if writable == "directory" else path).chmod(mode)

    assert undo_if_last(os.fsencode(path)) is None

    assert (tmp_path / "cache").exists()


def test_of_a_damaged_lock_file_the_directory_is_removed_at_least(
    tmp_path: Path,
) -> None:
    _, lock = make_job(tmp_path)
    os.ftruncate(lock, 0)
    os.write(lock, b"\xff" * 100)
    os.close(lock)

    assert undo_abandoned([os.fsencode(tmp_path)]) == []

    assert os.listdir(tmp_path) == ["cache"]


def test_what_fails_is_tried_again_until_the_final_attempt(tmp_path: Path) -> None:
    directory, lock = make_job(tmp_path)
    action = run_command(
        purpose="do it", argv=[b"/bin/false"], environment=[], timeout_s=200
    )
    os.write(lock, EndActions().register(action))
    os.close(lock)
    path = os.fsencode(directory / os.fsdecode(LOCK))
    failures = ["Could not do it: /bin/false exited with 1."]

    for _ in range(2):
        assert undo_if_last(path, is_final=False) == failures
        assert os.listdir(tmp_path) == ["poprun-1"]

    assert undo_if_last(path) == failures
    assert os.listdir(tmp_path) == []


def test_directories_of_jobs_are_listed_but_for_those_others_can_write_to(
    tmp_path: Path,
) -> None:
    places = [tmp_path / "one", tmp_path / "other"]
    for place, name in zip(places, ["poprun-a.0", "poprun-b.0"], strict=True):
        (place / name).mkdir(parents=True, mode=0o700)
    (places[0] / "poprun-shared").mkdir(mode=0o700)
    (places[0] / "poprun-shared").chmod(0o770)
    (places[0] / "poprun-link").symlink_to(places[1] / "poprun-b.0")
    (places[0] / "poprun-file").touch(mode=0o600)
    (places[0] / "another").mkdir(mode=0o700)

    searched = [*places, tmp_path / "none"]
    directories = list(job_directories(map(os.fsencode, searched)))

    assert sorted(map(os.fsdecode, directories)) == [
        str(places[0] / "poprun-a.0"),
        str(places[1] / "poprun-b.0"),
    ]
