"""Where the inventory of a user is."""

from pathlib import Path

import pytest

from poprun.vipu.errors import (
    InventoryUnavailableError,
)
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
