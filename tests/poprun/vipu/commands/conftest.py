"""The commands, run in this process on an inventory of one test."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from vipu_commands import Environ, Result, Run, empty
from vipu_servers import Server, serving

from poprun.vipu import liveness
from poprun.vipu.commands import entry_points
from poprun.vipu.inventory.embedded import EmbeddedInventory
from poprun.vipu.inventory.interface import Inventory
from poprun.vipu.leases import Acquisition, Grant, Holder


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server for all tests; each leaves it empty."""
    database = tmp_path_factory.mktemp("server") / "inventory.db"
    with serving(database, "--pod=none") as server:
        yield server


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The file of an inventory."""
    (tmp_path / "state").mkdir()
    return tmp_path / "state" / "inventory.db"


@pytest.fixture
def home(tmp_path: Path) -> Environ:
    """An environment that names no server."""
    (tmp_path / "home").mkdir()
    return {"HOME": str(tmp_path / "home")}


@pytest.fixture(params=["embedded"])
def environ(
    request: pytest.FixtureRequest, home: Environ, file: Path
) -> Iterator[Environ]:
    if request.param == "embedded":
        yield {**home, "POPRUN_VIPU_INVENTORY": str(file)}
        return
    server = request.getfixturevalue("shared_server")
    yield {
        **home,
        "VIPU_CLI_API_HOST": "127.0.0.1",
        "VIPU_CLI_API_PORT": str(server.port),
    }
    empty(server.database)


@pytest.fixture
def run(environ: Environ, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run a command line, split at its spaces: run("vipu list partitions")."""

    def run_it(line: str) -> Result:
        program, *argv = line.split()
        main = {"vipu": entry_points.vipu, "vipu-admin": entry_points.vipu_admin}
        code = main[program](argv, environ)
        return Result(code, *capfd.readouterr())

    return run_it


@pytest.fixture
def make(run: Run) -> Callable[..., None]:
    """Run command lines that must succeed."""

    def run_all(*lines: str) -> None:
        for line in lines:
            result = run(line)
            assert (result.code, result.err) == (0, ""), line

    return run_all


@pytest.fixture
def pod64(make: Callable[..., None]) -> None:
    """A cluster for tests that make none."""
    make("vipu-admin create cluster pod64 --preset pod64")


@pytest.fixture
def inventory(request: pytest.FixtureRequest, environ: Environ) -> Iterator[Inventory]:
    """The inventory of the commands, opened beside them."""
    if "VIPU_CLI_API_HOST" in environ:
        path = request.getfixturevalue("shared_server").database
    else:
        path = Path(environ["POPRUN_VIPU_INVENTORY"])
    inventory = EmbeddedInventory(path, host="h1")
    yield inventory
    inventory.close()


@pytest.fixture
def hold(inventory: Inventory) -> Callable[..., Grant]:
    """Hold IPUs of a partition, as a job of user bob that this process runs."""

    def acquire(partition: str, children: int) -> Grant:
        holder = Holder(user="bob", job="j7", host="h1", process=liveness.identify())
        return inventory.acquire(
            Acquisition(
                holder=holder,
                partition=partition,
                num_children=children,
                ipus_per_child=1,
            )
        )

    return acquire
