"""What --sync leaves out, and the file by which hosts compare folders."""

import os
from pathlib import Path

import pytest

from poprun.helpers.end_actions import EndActions, RemovePath
from poprun.host_specs import HostSpec
from poprun.log import Log
from poprun.reach.connections.other_command import find_command
from poprun.reach.copies import EXCLUDED, copy_to_hosts, folder_copy, marker_in


def test_virtual_environments_are_left_out_whatever_their_names(tmp_path: Path) -> None:
    for name in ("my env", "odd[1]*", "src"):
        (tmp_path / name).mkdir()
    for name in ("my env", "odd[1]*"):
        (tmp_path / name / "pyvenv.cfg").touch()

    copy = folder_copy(str(tmp_path))

    own = ["--exclude=/my env", "--exclude=/odd\\[1]\\*"]
    assert sorted(o for o in copy.options if o.startswith("--exclude=/")) == own
    assert {f"--exclude={name}" for name in EXCLUDED} < set(copy.options)
    assert not {o for o in copy.options if o.startswith("--del")}


def test_a_marker_is_known_to_the_guard_as_long_as_it_exists(tmp_path: Path) -> None:
    told: list[bytes] = []

    with marker_in(str(tmp_path), told.append) as marker:
        action = RemovePath(marker.encode())
        assert Path(marker).exists()
        assert told == [EndActions().register(action)]

    assert not list(tmp_path.iterdir())
    assert told[1:] == [EndActions().withdraw(action)]


def test_a_directory_without_write_permission_has_no_marker() -> None:
    with marker_in("/proc/self", lambda message: None) as marker:
        assert not Path(marker).exists()


@pytest.mark.parametrize("name", [b"two\nlines", b"\xe2\x80\xa8", b"\xff", b"'$(x) "])
def test_the_folder_is_the_same_whatever_characters_its_path_has(
    name: bytes, tmp_path: Path
) -> None:
    folder = tmp_path / os.fsdecode(name)
    folder.mkdir()
    ssh = tmp_path / "ssh"
    # Its host is this one.
    ssh.write_text('#!/bin/sh\nwhile [ "$1" != h ]; do shift; done\nexec sh -c "$2"\n')
    ssh.chmod(0o700)
    environ = {"PATH": os.environ["PATH"]}
    lines: list[str] = []

    copy_to_hosts(
        folder_copy(str(folder)),
        [HostSpec(name="h")],
        find_command(str(ssh), environ),
        environ,
        lambda message: None,
        Log(1, lines.append),
    )

    assert lines == []
