"""Inventories of one test, and the jobs that ask for their IPUs."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from poprun.vipu import liveness
from poprun.vipu.inventory.embedded import EmbeddedInventory
from poprun.vipu.leases import Acquisition, Grant, Holder
from poprun.vipu.rules import presets
from poprun.vipu.rules.partition_rules import request_for_job

HOST = "h1"

# Without the extras "vipu" and "test" there is no server to test.
EXTRAS = ("httptools", "msgspec", "starlette", "uvicorn", "schemathesis", "trustme")
if not all(map(find_spec, EXTRAS)):
    collect_ignore_glob = [
        "server/*",
        "client/test_server_inventory.py",
        "inventory/test_embedded_machine.py",
    ]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "vipu" / "inventory.db"


@pytest.fixture
def empty(path: Path) -> Iterator[EmbeddedInventory]:
    """An inventory without a cluster."""
    inventory = EmbeddedInventory(path, host=HOST)
    yield inventory
    inventory.close()


@pytest.fixture
def inventory(empty: EmbeddedInventory) -> EmbeddedInventory:
    """An inventory with one POD64, named c64."""
    empty.create_cluster(presets.preset("pod64", "c64"))
    return empty


@pytest.fixture
def holder() -> Holder:
    """This process, as a job that holds IPUs."""
    return Holder(user="alice", job="j1", host=HOST, process=liveness.identify())


@pytest.fixture
def launch(inventory: EmbeddedInventory, holder: Holder) -> Callable[..., Grant]:
    """Acquire IPUs as poprun does: for instances with one-IPU replicas."""

    def acquire(
        name: str, instances: int = 1, replicas: int = 1, **changes: object
    ) -> Grant:
        request = request_for_job(
            name,
            num_replicas=replicas,
            ipus_per_replica=1,
            num_instances=instances,
            strict=False,
        )
        asked = Acquisition(
            holder=holder,
            partition=name,
            num_children=instances,
            ipus_per_child=replicas // instances,
            create=request,
        )
        return inventory.acquire(replace(asked, **changes))

    return acquire
