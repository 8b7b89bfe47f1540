"""That the methods of an inventory perform the operations of their names."""

from typing import Any

import pytest

from poprun.vipu.inventory.interface import OF_ADMINS, Inventory
from poprun.vipu.model import Agent, Allocation


class Recorder(Inventory):
    def __init__(self) -> None:
        self.performed: list[tuple[Any, str, dict[str, Any]]] = []

    def _perform(self, kind: Any, operation: str, **arguments: Any) -> Any:
        self.performed.append((kind, operation, arguments))


def test_a_method_performs_its_operation_with_all_arguments() -> None:
    inventory = Recorder()

    inventory.create_agent("ag0", host="node0")
    inventory.create_allocation("al0", "c0", ["ag0"])
    inventory.remove_partition("p0", force=True)

    agent = {"name": "ag0", "host": "node0", "port": 8080}
    allocation = {"name": "al0", "cluster": "c0", "agents": ("ag0",), "users": ()}
    partition = {"name": "p0", "user": None, "force": True}
    assert inventory.performed == [
        (Agent, "create_agent", agent),
        (Allocation, "create_allocation", allocation),
        (None, "remove_partition", partition),
    ]


@pytest.mark.parametrize("arguments", [(), ("ag0", "node0", 1, "more")])
def test_wrong_arguments_are_refused_before_anything_is_performed(
    arguments: tuple[Any, ...],
) -> None:
    inventory = Recorder()
    create: Any = inventory.create_agent

    with pytest.raises(TypeError, match="CreateAgent"):
        create(*arguments)

    assert inventory.performed == []


def test_what_changes_machines_and_users_is_for_administrators() -> None:
    assert set(OF_ADMINS) == {
        "create_cluster",
        "set_cluster_hosts",
        "remove_cluster",
        "create_agent",
        "remove_agent",
        "set_agent_status",
        "create_allocation",
        "remove_allocation",
        "create_user",
        "list_users",
        "get_user",
        "remove_user",
    }
