"""What --sync leaves out, and the file by which hosts compare folders."""

from pathlib import Path

from poprun.helpers.end_actions import EndActions, RemovePath
from poprun.preflight.copies import marker_in
from poprun.preflight.synchronised_folder import EXCLUDED, folder_copy


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
