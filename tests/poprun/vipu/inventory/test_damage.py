"""An inventory that was edited by hand."""

import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest

from poprun.vipu.errors import (
    InventoryCorruptError,
    NoSpaceError,
    UnknownNameError,
)
from poprun.vipu.inventory.embedded import EmbeddedInventory
from poprun.vipu.leases import Acquisition, Holder
from poprun.vipu.model import PartitionRequest


@pytest.mark.parametrize(
    ("edit", "damage"),
    [
        ("clusters SET topology = 'ring'", "topology in its table clusters is 'ring'"),
        ("clusters SET num_ilds = 'two'", "num_ilds in its table clusters is 'two'"),
        ("clusters SET ild_size = 0", "ild_size in its table clusters is 0"),
        ("agents SET status = 'busy'", "status in its table agents is 'busy'"),
        ("allocations SET free_ipus = 1", "free_ipus in its table allocations is 1"),
        ("partitions SET state = 'on'", "state in its table partitions is 'on'"),
        ("partitions SET blocks = 'x'", "blocks in its table partitions is 'x'"),
        ("partitions SET created = 'now'", "created in its table partitions is 'now'"),
        ("leases SET holder = 'x'", "holder in its table leases is 'x'"),
        ("devices SET process = '[1]'", "process in its table devices is '[1]'"),
        (
            "leases SET id = 'x'",
            "its table devices names one of its leases that is not there",
        ),
    ],
)
def test_an_inventory_that_was_edited_by_hand_is_named_with_the_value(
    path: Path, holder: Holder, edit: str, damage: str
) -> None:
    inventory = EmbeddedInventory(path, host="h1")
    inventory.ensure_cluster(8)
    request = PartitionRequest(name="P", size=8, num_gcds=2)
    inventory.acquire(
        Acquisition(
            holder=holder,
            partition="P",
            num_children=2,
            ipus_per_child=4,
            create=request,
        )
    )
    inventory.close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE {edit}")
    connection.close()
    inventory = EmbeddedInventory(path, host="h1")
    with pytest.raises(InventoryCorruptError) as refusal:
        use(inventory)

    assert str(refusal.value) == (
        f"The V-IPU inventory {path} is damaged: {damage}. Move it away, and poprun "
        "creates a new one; the partitions in it are lost."
    )
    inventory.close()


@pytest.mark.parametrize(
    "edit", ["allocations SET name = NULL", "agents SET machine = NULL"]
)
def test_no_edit_by_hand_leaves_a_value_out(path: Path, edit: str) -> None:
    with closing(EmbeddedInventory(path, host="h1")) as inventory:
        inventory.ensure_cluster(8)
    with (
        closing(sqlite3.connect(path)) as connection,
        pytest.raises(sqlite3.IntegrityError, match="constraint failed"),
    ):
        connection.execute(f"UPDATE {edit}")


def use(inventory: EmbeddedInventory) -> None:
    """List what there is, and ask for more than there is."""
    inventory.list_agents()
    inventory.list_allocations()
    inventory.list_partitions()
    inventory.list_leases()
    inventory.list_reservations()
    for name in ("Q", "R"):
        with suppress(NoSpaceError):
            inventory.create_partition(PartitionRequest(name=name, size=64))
    with suppress(UnknownNameError):
        inventory.create_partition(PartitionRequest(name="S", size=1, allocation="A"))
