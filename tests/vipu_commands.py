"""What the tests of the commands have in common."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from poprun.vipu.inventory.embedded import EmbeddedInventory

Environ = dict[str, str]


class Result(NamedTuple):
    """What a command wrote, and its exit code."""

    code: int
    out: str
    err: str


Run = Callable[..., Result]


def empty(database: Path) -> None:
    """Remove all that an inventory has."""
    inventory = EmbeddedInventory(database, host="h1")
    for partition in inventory.list_partitions():
        inventory.remove_partition(partition.name, force=True)
    for allocation in inventory.list_allocations():
        if allocation.name != allocation.cluster:
            inventory.remove_allocation(allocation.name)
    for cluster in inventory.list_clusters():
        inventory.remove_cluster(cluster.name)
    for agent in inventory.list_agents():
        inventory.remove_agent(agent.name)
    for user in inventory.list_users():
        inventory.remove_user(user.name)
    inventory.close()


# Run a test twice: on the embedded inventory, and on that of a server.
inventories = pytest.mark.parametrize("environ", ["embedded", "server"], indirect=True)
