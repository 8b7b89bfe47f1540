"""The commands on servers: whom a secure one lets in, and what each user sees."""

import socket
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from vipu_commands import Environ, Run
from vipu_servers import Server, count_timeout_from_connection, serving

from poprun import __version__

Make = Callable[..., None]


@pytest.fixture
def server(file: Path) -> Iterator[Server]:
    with serving(file, "--pod=none", "--secure") as server:
        yield server


@pytest.fixture
def environ(home: Environ) -> Environ:
    return home


@pytest.fixture
def admin(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The command of the first administrator."""
    monkeypatch.chdir(tmp_path)
    file = server.database.with_name("admin.vipu-cli.hcl")
    return f"vipu-admin --config {file} --api-port {server.port}"


@pytest.fixture
def users(make: Make, admin: str) -> tuple[str, str]:
    """The commands of two users, by the files that were written for them."""
    make(
        f"{admin} create cluster c16 --preset pod16",
        f"{admin} create user alice",
        f"{admin} create user bob",
    )
    return "vipu --config alice.vipu-cli.hcl", "vipu --config bob.vipu-cli.hcl"


def test_the_server_tells_its_version(run: Run, admin: str, server: Server) -> None:
    line = admin.replace("vipu-admin", "vipu")

    result = run(f"{line} --server-version")

    assert result.out == f"version: {__version__}\nhost: 127.0.0.1:{server.port}\n"


def test_users_see_their_own_partitions_and_administrators_all(
    make: Make, run: Run, admin: str, users: tuple[str, str]
) -> None:
    alice, bob = users
    make(
        f"{alice} create partition p-alice --size 4",
        f"{bob} create partition p-bob --size 4",
    )

    assert "p-bob" not in run(f"{alice} list partitions").out
    refused = run(f"{alice} remove partition p-bob")
    assert (refused.code, refused.out) == (1, "")
    rows = run(f"{admin} list partitions").out.splitlines()[2:-1]
    assert [[cell.strip() for cell in row.split("|")[1:3]] for row in rows] == [
        ["alice", "p-alice"],
        ["bob", "p-bob"],
    ]
    make(f"{admin} remove partition p-alice p-bob")


def test_a_user_is_no_administrator(run: Run, users: tuple[str, str]) -> None:
    line = users[0].replace("vipu ", "vipu-admin ")

    result = run(f"{line} create user mallory")

    assert (result.code, result.out) == (1, "")
    assert not Path("mallory.vipu-cli.hcl").exists()


def test_a_wrong_key_is_refused(run: Run, users: tuple[str, str]) -> None:
    file = Path("alice.vipu-cli.hcl")
    file.write_text(file.read_text().replace('key = "', 'key = "x'))

    result = run(f"{users[0]} list partitions")

    assert (result.code, result.out) == (1, "")
    assert "not accepted" in result.err


def test_advice_on_a_server_names_the_options_of_the_command(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    count_timeout_from_connection(monkeypatch)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        server = f"--api-host 127.0.0.1 --api-port {port}"
        result = run(f"vipu {server} --api-timeout 0.05 list partitions")

    assert (result.code, result.out) == (1, "")
    assert "Wait longer with --api-timeout, or see whether" in result.err
    assert "--vipu-" not in result.err


def test_a_locked_inventory_has_a_hint_with_the_option_of_the_command(
    make: Make, run: Run, home: Environ, file: Path
) -> None:
    home["POPRUN_VIPU_INVENTORY"] = str(file)
    make("vipu create partition p1 --size 4")
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    result = run("vipu --api-timeout 0.05 remove partition p1")
    other.execute("ROLLBACK")
    other.close()

    assert result.code == 1
    assert result.err == (
        f"vipu: error: Other processes kept the V-IPU inventory {file} locked for "
        "0.05 s. Try again.\nvipu: hint: --api-timeout TIME waits longer.\n"
    )
