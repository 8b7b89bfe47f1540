"""End actions: what they do, how they fail, and that bytes carry them unchanged."""

import os
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from conftest import wait_for

from poprun.helpers import end_actions
from poprun.helpers.end_actions import (
    EndAction,
    EndActions,
    RemovePath,
    RunCommand,
    run_command,
)
from poprun.wire import protocol


def remove(path: Path) -> RemovePath:
    return RemovePath(os.fsencode(path))


def run(script: str, *environment: str, timeout_s: float = 200.0) -> RunCommand:
    return run_command(
        purpose="release partition p0",
        argv=[b"/bin/sh", b"-c", os.fsencode(script)],
        environment=[*map(os.fsencode, environment), b"PATH=/usr/bin:/bin"],
        timeout_s=timeout_s,
    )


# --- Removing a path.


def test_a_directory_is_removed_with_all_that_is_in_it(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    (mine / "a/b").mkdir(parents=True)
    (mine / "a/b/file").touch()
    (mine / ".hidden").touch()
    os.mkfifo(mine / "pipe")
    Path(os.fsdecode(os.fsencode(mine) + b"/\xff")).touch()
    (tmp_path / "other").touch()

    assert remove(mine).perform() == ""

    assert os.listdir(tmp_path) == ["other"]


def test_links_are_removed_and_what_they_point_at_stays(tmp_path: Path) -> None:
    other, mine = tmp_path / "other", tmp_path / "mine"
    other.mkdir()
    (other / "data").touch()
    mine.mkdir()
    (mine / "link").symlink_to(other)
    (mine / "dangling").symlink_to(tmp_path / "nothing")
    (tmp_path / "link").symlink_to(other)

    assert [remove(mine).perform(), remove(tmp_path / "link").perform()] == ["", ""]

    assert os.listdir(tmp_path) == ["other"]
    assert os.listdir(other) == ["data"]


def test_a_path_that_does_not_exist_is_removed_successfully(tmp_path: Path) -> None:
    assert remove(tmp_path / "nothing").perform() == ""
    assert remove(tmp_path / "no" / "thing").perform() == ""


def test_a_path_that_cannot_be_removed_is_named_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    for name in ("a/locked", "a/other"):
        (tmp_path / name).touch()
    unlink = os.unlink

    def refuse(path: bytes) -> None:
        if path.endswith(b"locked"):
            raise PermissionError(13, "Permission denied", path)
        unlink(path)

    monkeypatch.setattr(os, "unlink", refuse)

    assert remove(tmp_path / "a").perform() == (
        f"Could not remove {tmp_path}/a: Permission denied. Remove it yourself."
    )
    assert os.listdir(tmp_path / "a") == ["locked"]


def test_a_removal_ends_when_its_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.setattr(RemovePath, "limit_s", -1.0)

    failure = remove(tmp_path / "a").perform()

    assert failure == (
        f"Could not remove {tmp_path}/a: it took 60 s. Remove it yourself."
    )


# --- Running a command.


def test_a_command_gets_its_environment_and_nothing_on_stdin(tmp_path: Path) -> None:
    written = tmp_path / "written"
    script = 'read line; echo "$? $NAME $(env | grep -c HOME)" > "$OUT"'
    action = run(script, "NAME=a=b", f"OUT={written}")

    assert action.perform() == ""

    assert written.read_text() == "1 a=b 0\n"


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("exit 3", "exited with 3"),
        ("echo out; echo 'no such lease.' >&2; exit 1", "exited with 1: no such lease"),
        ("kill -9 $$", "was killed by SIGKILL"),
        ("kill -40 $$", "was killed by signal 40"),
        ("yes 0123456789 | head -c 1100000; exit 2", "exited with 2: 0123456789"),
    ],
)
def test_a_command_that_fails_is_reported_in_one_sentence(
    script: str, reason: str
) -> None:
    failure = run(script).perform()

    assert failure == f"Could not release partition p0: /bin/sh {reason}."


def test_a_command_that_something_kills_is_run_again(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    script = "echo >> $OUT; [ $(wc -l < $OUT) = 3 ] || kill -9 $$"

    assert run(script, f"OUT={runs}").perform() == ""

    assert runs.read_text() == "\n\n\n"


def test_a_command_that_cannot_be_run_is_reported(tmp_path: Path) -> None:
    action = run_command(
        purpose="release it",
        argv=[os.fsencode(tmp_path / "missing")],
        environment=[],
        timeout_s=1,
    )

    assert action.perform() == (
        f"Could not release it: {tmp_path}/missing cannot be run: "
        "No such file or directory."
    )


def test_a_command_that_hangs_is_killed_with_what_it_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = tmp_path / "pids"
    wait = end_actions._wait

    def wait_once_it_hangs(pid: int, timeout_s: float) -> int | None:
        wait_for(lambda: pids.exists() and "\n" in pids.read_text(), "its children")
        return wait(pid, timeout_s)

    monkeypatch.setattr(end_actions, "_wait", wait_once_it_hangs)
    script = "trap '' TERM; sleep 600 & echo $! $$ > $OUT; wait; sleep 600"

    failure = run(script, f"OUT={pids}", timeout_s=1.0).perform()

    assert failure == (
        "Could not release partition p0: /bin/sh did not end within 1 s and was killed."
    )
    for pid in map(int, pids.read_text().split()):
        wait_for(lambda pid=pid: not lives(pid), "the end of the command")


def lives(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_what_a_command_has_left_running_is_killed_and_not_waited_for() -> None:
    # It keeps the output open.
    assert run("sleep 600 & exit 0").perform() == ""


def test_a_command_handles_signals_by_default(tmp_path: Path) -> None:
    written = tmp_path / "written"

    # pytest ignores SIGPIPE.
    assert run('grep SigIgn /proc/$$/status > "$OUT"', f"OUT={written}").perform() == ""

    ignored = int(written.read_text().split()[1], 16)
    for number in (1, 2, 3, 13, 15, 20):
        assert not ignored & 1 << number - 1


# --- The end actions of a job.


def test_the_last_registered_is_performed_first(tmp_path: Path) -> None:
    written = tmp_path / "written"
    actions = EndActions()
    for word in ("one", "two", "three"):
        actions.register(run(f"echo {word} >> $OUT", f"OUT={written}"))

    assert actions.perform() == []

    assert written.read_text().split() == ["three", "two", "one"]


def test_a_failure_does_not_keep_the_others_from_being_performed(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").touch()
    actions = EndActions()
    actions.register(remove(tmp_path / "file"))
    actions.register(run("exit 3"))
    actions.register(run("exit 4"))

    failures = actions.perform()

    assert [failure[-2:] for failure in failures] == ["4.", "3."]
    assert not (tmp_path / "file").exists()


def test_what_has_been_made_again_is_undone_again(tmp_path: Path) -> None:
    actions = EndActions()
    actions.register(remove(tmp_path / "file"))

    for _ in range(2):
        (tmp_path / "file").touch()
        assert actions.perform() == []
        assert not (tmp_path / "file").exists()


def test_an_action_is_registered_once_and_withdrawn_by_its_value(
    tmp_path: Path,
) -> None:
    actions = EndActions()
    for _ in range(2):
        actions.register(remove(tmp_path / "a"))
        actions.register(run("true"))
    actions.withdraw(run("true", timeout_s=201))
    assert list(actions) == [remove(tmp_path / "a"), run("true")]

    actions.withdraw(remove(tmp_path / "a"))
    actions.withdraw(remove(tmp_path / "a"))

    assert list(actions) == [run("true")]


def test_their_limit_is_that_of_all_together(tmp_path: Path) -> None:
    actions = EndActions()
    assert actions.limit_s == 0
    actions.register(remove(tmp_path))
    actions.register(run("true", timeout_s=2.5))

    assert actions.limit_s == 60 + 2.5 + 1


@pytest.mark.parametrize(
    "action",
    [
        RemovePath(b"/dev/shm/\xff\0\n"),
        run("a script", "EMPTY=", "SPACE= a ", timeout_s=0.25),
        run_command(purpose="", argv=[b"/x", b""], environment=[], timeout_s=0),
    ],
)
def test_bytes_carry_an_action_unchanged(action: EndAction) -> None:
    sent, received = EndActions(), EndActions()
    sent.register(action)

    received.read(sent.pack())

    [found] = received
    assert found == action
    assert hash(found) == hash(action)
    assert found.limit_s == action.limit_s
    assert repr(found) == repr(action)


def test_messages_lead_to_the_same_actions_in_the_same_order(tmp_path: Path) -> None:
    sent, received = EndActions(), EndActions()
    steps: list[tuple[Callable[[EndAction], bytes], EndAction]] = [
        (sent.register, remove(tmp_path / "a")),
        (sent.register, run("true")),
        (sent.register, remove(tmp_path / "b")),
        (sent.withdraw, run("true")),
    ]

    for call, action in steps:
        received.read(call(action))

    assert list(received) == [remove(tmp_path / "a"), remove(tmp_path / "b")]


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"\0",
        b"\0\0\0\0",
        b"\xff" * 40,
        protocol.pack(protocol.END_ACTION),
        protocol.pack(protocol.END_ACTION, b"burn", b"/dev/shm"),
        protocol.pack(protocol.END_ACTION, b"remove"),
        protocol.pack(protocol.END_ACTION, b"run", b"release", b"many", b"1", b"/x"),
        protocol.pack(protocol.END_ACTION, b"run", b"release"),
        protocol.pack(protocol.KILL),
    ],
)
def test_damaged_bytes_are_read_up_to_the_damage(damage: bytes, tmp_path: Path) -> None:
    sent, received = EndActions(), EndActions()
    sent.register(remove(tmp_path / "a"))

    received.read(sent.pack() + damage)

    assert list(received) == [remove(tmp_path / "a")]
    assert received.pack() == sent.pack()


def test_the_directories_are_those_of_the_paths_to_remove(tmp_path: Path) -> None:
    actions = EndActions()
    actions.register(run("true"))
    for path in (tmp_path / "a", tmp_path / "b", tmp_path / "c" / "d"):
        actions.register(remove(path))

    assert actions.directories() == {
        os.fsencode(tmp_path),
        os.fsencode(tmp_path / "c"),
    }
