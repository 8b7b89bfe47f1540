"""Where the inventory of a user is."""

import os
import stat
from pathlib import Path

import pytest

from poprun.vipu.errors import (
    InventoryUnavailableError,
)
from poprun.vipu.inventory.embedded import EmbeddedInventory
from poprun.vipu.inventory.location import find_inventory


def test_the_inventory_is_in_the_state_directory_under_the_name_of_the_machine(
    tmp_path: Path,
) -> None:
    home = {"HOME": str(tmp_path)}

    assert find_inventory(home, "h1") == (
        f"{tmp_path}/.local/state/poprun/vipu/h1/inventory.db"
    )
    assert find_inventory(home | {"XDG_STATE_HOME": "/state"}, "../h1") == (
        "/state/poprun/vipu/.._h1/inventory.db"
    )
    assert find_inventory(home | {"XDG_STATE_HOME": "state"}, "h1") == find_inventory(
        home, "h1"
    )
    named = home | {"POPRUN_VIPU_INVENTORY": "/x/y.db"}
    assert find_inventory(named, "h1") == "/x/y.db"


def test_a_relative_path_begins_in_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert find_inventory({"POPRUN_VIPU_INVENTORY": "y.db"}, "h1") == f"{tmp_path}/y.db"


def test_a_home_that_does_not_exist_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(InventoryUnavailableError, match=r"/gone, .* does not exist"):
        find_inventory({"HOME": f"{tmp_path}/gone"}, "h1")


def test_a_home_that_is_none_is_named() -> None:
    with pytest.raises(InventoryUnavailableError) as refusal:
        find_inventory({"HOME": "nowhere"}, "h1")

    assert str(refusal.value) == (
        "This user has no home directory, where the V-IPU inventory would be. Name a "
        "file for it with POPRUN_VIPU_INVENTORY."
    )


def test_only_the_user_can_read_it(path: Path) -> None:
    inventory = EmbeddedInventory(path, host="h1")
    inventory.ensure_cluster(1)

    for file in path.parent.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    inventory.close()
    assert [file.name for file in path.parent.iterdir()] == ["inventory.db"]


@pytest.mark.parametrize("umask", [0, 0o777])
def test_its_directories_are_for_the_user_alone_whatever_the_umask(
    tmp_path: Path, umask: int
) -> None:
    path = tmp_path / "state" / "poprun" / "vipu" / "h1" / "inventory.db"
    before = os.umask(umask)
    try:
        inventory = EmbeddedInventory(path, host="h1")
        inventory.ensure_cluster(1)
    finally:
        os.umask(before)

    made = [directory for directory in path.parents if tmp_path in directory.parents]
    assert [stat.S_IMODE(d.stat().st_mode) for d in made] == [0o700] * 4
    assert {stat.S_IMODE(f.stat().st_mode) for f in path.parent.iterdir()} == {0o600}
    inventory.close()


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """An inventory where poprun puts it by default."""
    path = tmp_path / "poprun" / "vipu" / "h1" / "inventory.db"
    EmbeddedInventory(path, host="h1").close()
    return path


@pytest.mark.parametrize("what", [".", "inventory.db", "..", "../.."])
@pytest.mark.parametrize("mode", [0o777, 0o707, 0o770])
def test_what_others_can_write_to_is_refused(
    own: Path, what: str, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_to_all = Path(os.path.normpath(own.parent / what))
    open_to_all.chmod(mode)
    own_group = "poprun.vipu.inventory.location._is_own_group"
    monkeypatch.setattr(own_group, lambda _: False)
    with pytest.raises(InventoryUnavailableError) as refusal:
        EmbeddedInventory(own, host="h1")

    kind = "file" if open_to_all == own else "directory"
    place = str(open_to_all)
    assert str(refusal.value) == (
        f"Other users can write to the {kind} {place} of the V-IPU inventory. Check "
        f"that its contents are right, and run: chmod go-w {place}; or name another "
        "place with POPRUN_VIPU_INVENTORY."
    )
    open_to_all.chmod(0o700)
    EmbeddedInventory(own, host="h1").close()


@pytest.mark.parametrize("what", [".", "inventory.db", "inventory.db-wal", ".."])
def test_what_belongs_to_another_user_is_refused(
    own: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = Path(os.path.normpath(own.parent / what))
    if what.endswith("-wal"):
        theirs.touch(mode=0o600)
    status = os.lstat(theirs)
    lstat = os.lstat

    def seen(path: str) -> os.stat_result:
        found = lstat(path)
        if not os.path.samestat(found, status):
            return found
        return os.stat_result((*found[:4], 54321, *found[5:]))

    monkeypatch.setattr(os, "lstat", seen)
    with pytest.raises(InventoryUnavailableError) as refusal:
        EmbeddedInventory(own, host="h1")

    kind = "file" if theirs.name.startswith("inventory") else "directory"
    assert str(refusal.value) == (
        f"The {kind} {theirs} of the V-IPU inventory belongs to another user, 54321. "
        "Remove it, or name another place with POPRUN_VIPU_INVENTORY."
    )


def test_links_are_followed_to_what_no_other_user_can_write(
    own: Path, tmp_path: Path
) -> None:
    (tmp_path / "link.db").symlink_to(own)
    EmbeddedInventory(tmp_path / "link.db", host="h1").close()
    own.parent.chmod(0o777)
    with pytest.raises(InventoryUnavailableError, match="Other users can write"):
        EmbeddedInventory(tmp_path / "link.db", host="h1")

    # In /tmp others can make files, but not replace any.
    own.parent.chmod(0o1777)
    EmbeddedInventory(tmp_path / "link.db", host="h1").close()
