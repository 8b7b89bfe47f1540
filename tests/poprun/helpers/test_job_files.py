import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import wait_for

from poprun.helpers.job_files import (
    LOCK,
    PATIENCE_S,
    Leftovers,
    hold,
    make_lock,
    remove,
    remove_abandoned,
    remove_if_last,
)


def test_a_directory_goes_with_all_that_is_in_it(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    (mine / "a/b").mkdir(parents=True)
    (mine / "a/b/file").touch()
    (mine / ".hidden").touch()
    os.mkfifo(mine / "pipe")
    Path(os.fsdecode(os.fsencode(mine) + b"/\xff")).touch()
    (tmp_path / "other").touch()

    remove([os.fsencode(mine)])

    assert os.listdir(tmp_path) == ["other"]


def test_links_go_and_what_they_point_at_stays(tmp_path: Path) -> None:
    other, mine = tmp_path / "other", tmp_path / "mine"
    other.mkdir()
    (other / "data").touch()
    mine.mkdir()
    (mine / "link").symlink_to(other)
    (mine / "dangling").symlink_to(tmp_path / "nothing")
    (tmp_path / "link").symlink_to(other)

    remove([os.fsencode(mine), os.fsencode(tmp_path / "link")])

    assert os.listdir(tmp_path) == ["other"]
    assert os.listdir(other) == ["data"]


def test_what_is_gone_already_keeps_nothing_else_from_going(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    remove([os.fsencode(tmp_path / "nothing"), os.fsencode(tmp_path / "file")])

    assert os.listdir(tmp_path) == []


# --- Files that lie where everybody's files are.


@pytest.fixture
def member(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process of the job: has a file open that MPI has made."""
    with subprocess.Popen(["sh", "-c", "exec sleep 60 3>shm_ours"], cwd=tmp_path) as it:
        wait_for((tmp_path / "shm_ours").exists, "the file")
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

    leftovers.notice()

    assert leftovers.in_doubt
    ours = os.fsencode(tmp_path / "shm_ours")
    assert leftovers.claim([member.pid, os.getpid()]) == [ours]
    assert leftovers.paths == [ours]
    remove(leftovers.paths)
    assert sorted(os.listdir(tmp_path)) == ["other", "shm_theirs"]


def test_a_file_that_nobody_claims_is_soon_a_neighbours(tmp_path: Path) -> None:
    leftovers = Leftovers()
    leftovers.watch([os.fsencode(tmp_path / "shm_")])
    (tmp_path / "shm_theirs").touch()
    leftovers.notice()
    assert leftovers.in_doubt

    time.sleep(PATIENCE_S)

    assert leftovers.claim([os.getpid()]) == []
    assert (leftovers.in_doubt, leftovers.paths) == (False, [])


def test_a_file_that_is_known_is_not_doubted_again(
    tmp_path: Path, member: subprocess.Popen[bytes]
) -> None:
    leftovers = Leftovers()
    leftovers.watch([os.fsencode(tmp_path / "shm_")])
    leftovers.claim([member.pid])

    leftovers.doubt_all()

    assert not leftovers.in_doubt


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
    paths = [os.fsencode(directory), os.fsencode(cache)]
    return directory, make_lock(paths[0], paths)


def test_files_stay_as_long_as_one_supervisor_lives(tmp_path: Path) -> None:
    directory, lock = make_job(tmp_path)
    path = os.fsencode(directory / os.fsdecode(LOCK))
    another = hold(path)

    os.close(lock)
    assert not remove_if_last(path)
    assert not remove_if_last(path)
    remove_abandoned([os.fsencode(tmp_path)])
    assert sorted(os.listdir(tmp_path)) == ["cache", "poprun-1"]

    os.close(another)
    assert remove_if_last(path)
    assert os.listdir(tmp_path) == []
    assert not remove_if_last(path)
    assert hold(path) == -1


def test_what_a_guard_has_found_goes_with_the_rest(tmp_path: Path) -> None:
    directory, lock = make_job(tmp_path)
    guards = hold(os.fsencode(directory / os.fsdecode(LOCK)))
    (tmp_path / "segment").touch()
    os.write(guards, os.fsencode(tmp_path / "segment") + b"\0")
    os.close(lock)
    os.close(guards)

    remove_abandoned([os.fsencode(tmp_path), b"/nowhere"])

    assert os.listdir(tmp_path) == []


def test_a_directory_without_a_lock_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "poprun-2").mkdir()
    (tmp_path / "poprun-3").symlink_to(tmp_path / "poprun-2")

    remove_abandoned([os.fsencode(tmp_path)])

    assert sorted(os.listdir(tmp_path)) == ["poprun-2", "poprun-3"]


def test_a_link_to_a_directory_with_a_lock_is_not_followed(tmp_path: Path) -> None:
    directory, lock = make_job(tmp_path)
    os.close(lock)
    place = tmp_path / "place"
    place.mkdir()
    (place / "poprun-9").symlink_to(directory)

    remove_abandoned([os.fsencode(place)])

    assert directory.exists()
