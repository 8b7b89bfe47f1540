"""Jobs on a server with access keys and TLS: whatever dies, their IPUs are free."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from conftest import Poprun, wait_for
from vipu_servers import Server, serving

from poprun.vipu.client.server_address import find_server
from poprun.vipu.client.server_inventory import ServerInventory

HOLD = """
import os, pathlib, popdist, time
popdist.getDeviceId()
pathlib.Path(f"holds-{os.environ['RANK']}").touch()
while not pathlib.Path("go").exists():
    time.sleep(0.05)
"""
JOB = ("--mpirun", "local", "-n", "2", "--grace=0.3", "--vipu-partition=P")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    arguments = (f"--tls-cert={tmp_path / 'cert.pem'}", "--secure")
    key = f"--tls-key={tmp_path / 'key.pem'}"
    with serving(tmp_path / "server.db", *arguments, key) as started:
        yield started


@pytest.fixture
def admin(server: Server, tmp_path: Path) -> Iterator[ServerInventory]:
    address = find_server({}, config_file=tmp_path / "admin.vipu-cli.hcl")
    assert address is not None
    address = address._replace(ca_cert=str(tmp_path / "ca.pem"))
    inventory = ServerInventory(address, timeout_s=200, admin=True)
    yield inventory
    inventory.close()


def settings(server: Server, directory: Path, user: str, key: str) -> dict[str, str]:
    """Return the environment of a user of the server, whose home has a file of it."""
    home = directory / f"home-{user}"
    home.mkdir(exist_ok=True)
    (home / ".vipu.hcl").write_text(
        f'api-host = "127.0.0.1"\napi-port = "{server.port}"\napi-tls = "yes"\n'
        f'api-user-id = "{user}"\napi-access-key = "{key}"\n'
        f'api-ca-cert = "{directory / "ca.pem"}"\n'
    )
    return {"HOME": str(home)}


@pytest.fixture
def alice(
    poprun: Poprun, server: Server, admin: ServerInventory, tmp_path: Path
) -> Poprun:
    """poprun as alice uses it, with a program that holds its devices."""
    key = admin.create_user("alice")
    poprun.environ.update(settings(server, tmp_path, "alice", key))
    poprun.script("hold.py", HOLD)
    return poprun


def start(poprun: Poprun) -> "subprocess.Popen[bytes]":
    """Start a job, and wait until each instance is attached to its device."""
    job = poprun.start(*JOB, "python", "hold.py")
    files = [poprun.directory / f"holds-{rank}" for rank in range(2)]
    wait_for(lambda: all(file.exists() for file in files), "attached instances")
    return job


def is_free(admin: ServerInventory) -> bool:
    return not (
        admin.list_leases() or admin.list_reservations() or admin.list_partitions()
    )


@pytest.mark.parametrize("server_dies", [False, True])
def test_the_guard_releases_the_ipus_with_the_key_of_the_user(
    alice: Poprun, server: Server, admin: ServerInventory, server_dies: bool
) -> None:
    job = start(alice)
    [lease] = admin.list_leases()
    assert lease.holder.user == "alice"
    if server_dies:
        server.kill()
        server.restart()

    job.kill()
    job.wait(200)

    wait_for(lambda: is_free(admin), "free IPUs")


def test_the_job_of_a_user_who_is_removed_goes_on_and_is_released(
    alice: Poprun, admin: ServerInventory
) -> None:
    job = start(alice)

    admin.remove_user("alice")
    late = alice(*JOB[:-1], "--vipu-partition=Q", "true")
    (alice.directory / "go").touch()

    # The id of its lease is the right to it.
    _, error = job.communicate(timeout=200)
    assert (job.returncode, error) == (0, b"")
    wait_for(lambda: is_free(admin), "free IPUs")
    assert late.code == 125
    assert len(late.stderr.splitlines()) == 1
    assert "access key" in late.stderr


def test_a_key_is_that_of_one_user(
    alice: Poprun, server: Server, admin: ServerInventory, tmp_path: Path
) -> None:
    admin.create_user("bob")
    [key] = [
        line.split('"')[1]
        for line in Path(alice.environ["HOME"], ".vipu.hcl").read_text().splitlines()
        if "access-key" in line
    ]

    ran = alice(*JOB, "true", environ=settings(server, tmp_path, "bob", key))

    assert ran.code == 125
    assert len(ran.stderr.splitlines()) == 1
    assert "access key" in ran.stderr
    assert key not in ran.stderr
    assert is_free(admin)


def test_the_key_is_not_shown_and_not_in_the_instances(alice: Poprun) -> None:
    text = Path(alice.environ["HOME"], ".vipu.hcl").read_text()
    [key] = [line.split('"')[1] for line in text.splitlines() if "access-key" in line]

    ran = alice("-vv", *JOB, "env")

    assert ran.code == 0
    assert key not in ran.stderr + ran.stdout


def test_another_user_cannot_use_the_partition_of_a_job(
    alice: Poprun, server: Server, admin: ServerInventory, tmp_path: Path
) -> None:
    bob = settings(server, tmp_path, "bob", admin.create_user("bob"))
    job = start(alice)

    ran = alice(*JOB, "true", environ=bob)

    assert ran.code == 125
    assert len(ran.stderr.splitlines()) == 1
    (alice.directory / "go").touch()
    assert job.wait(200) == 0
