"""Clusters, allocations and users, as `vipu-admin` makes and shows them."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from vipu_commands import Environ, Run, inventories

from poprun.vipu.client.server_address import read_config

pytestmark = inventories

Make = Callable[..., None]


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the commands write files."""
    path = tmp_path / "here"
    path.mkdir()
    monkeypatch.chdir(path)
    return path


def test_a_cluster_is_made_as_administrators_of_pods_do(make: Make, run: Run) -> None:
    names = ",".join(f"ag{n}" for n in range(1, 9))
    make(
        *(f"vipu-admin create agent ag{n} --host 10.1.2.{n}" for n in range(1, 9)),
        "vipu-admin create cluster c2 --num-ipulinkdomains 2 --topology torus "
        f"--cluster-topology looped --agents {names}",
    )

    found = json.loads(run("vipu-admin get cluster c2 --json").out)

    assert found["spec"]["topology"] == "torus"
    assert found["spec"]["cluster_topology"] == "looped"
    first, second = found["spec"]["ipu_link_domains"]
    assert first["ipus"][::4] == ["ag1:0", "ag2:0", "ag3:0", "ag4:0"]
    assert second["ipus"][-1] == "ag8:3"


@pytest.mark.parametrize(
    ("options", "ilds", "size", "topology"),
    [
        ("--preset pod4", 1, 4, "mesh"),
        ("--preset POD256", 4, 64, "torus"),
        ("--num-agents 3", 1, 12, "mesh"),
        ("--num-agents 32", 2, 64, "torus"),
        ("--num-agents 32 --num-ipulinkdomains 4 --topology mesh", 4, 32, "mesh"),
    ],
)
def test_a_cluster_of_new_agents_has_racks_of_64_ipus(
    make: Make, run: Run, options: str, ilds: int, size: int, topology: str
) -> None:
    make(f"vipu-admin create cluster c {options}")

    [found] = json.loads(run("vipu list clusters --json").out)

    domains = found["spec"]["ipu_link_domains"]
    assert [len(domain["ipus"]) for domain in domains] == [size] * ilds
    assert found["spec"]["topology"] == topology


def test_a_cluster_names_the_host_servers_of_its_pods(make: Make, run: Run) -> None:
    make(
        "vipu-admin create cluster c16 --num-agents 4 --hosts n1,n2",
        "vipu-admin create cluster c8 --num-agents 2",
    )

    assert "| n1 n2\n" in run("vipu get cluster c16").out
    shown = json.loads(run("vipu get cluster c8 --json").out)
    assert shown["spec"]["hosts"] == []
    assert run("vipu-admin update cluster c8 c16 --hosts 10.0.0.1,10.0.0.2").out == (
        "update cluster (c8): success.\nupdate cluster (c16): success.\n"
    )
    shown = json.loads(run("vipu get cluster c16 --json").out)
    assert shown["spec"]["hosts"] == ["10.0.0.1", "10.0.0.2"]


@pytest.mark.parametrize(
    ("hosts", "shown"),
    [
        ("n[08-10],m", ["n08", "n09", "n10", "m"]),
        ("n[1,3],10.0.0.1[0-1]", ["n1", "n3", "10.0.0.10", "10.0.0.11"]),
        ("alice@a:2,[fd00::1]:4", ["alice@a:2", "[fd00::1]:4"]),
        ("", []),
        (",", []),
    ],
)
def test_hosts_of_a_cluster_are_written_as_for_poprun(
    make: Make, run: Run, hosts: str, shown: list[str]
) -> None:
    make("vipu-admin create cluster c16 --num-agents 4 --hosts x,y")

    make(f"vipu-admin update cluster c16 --hosts={hosts}")

    cluster = json.loads(run("vipu get cluster c16 --json").out)
    assert cluster["spec"]["hosts"] == shown


@pytest.mark.parametrize(
    ("hosts", "problem"),
    [
        ("a,b,c", "would have 3 hosts for its 16 IPUs, but each host has the same"),
        ("a,a", "'a' is listed twice"),
        ("a,$x", "'$x' is not a host name"),
        ("-oProxyCommand=x", "'-oProxyCommand=x' is not a host name"),
        ("a[1-99999]", "'a[1-99999]' stands for too many hosts"),
    ],
)
def test_hosts_that_a_cluster_cannot_have_are_refused(
    make: Make, run: Run, hosts: str, problem: str
) -> None:
    make("vipu-admin create cluster c16 --num-agents 4")

    refused = run(f"vipu-admin update cluster c16 --hosts {hosts}")

    assert problem in refused.err.replace("\n", " ")
    assert "| -\n" in run("vipu get cluster c16").out


def test_the_access_key_is_written_once_and_into_a_file_for_its_owner_only(
    run: Run, directory: Path, environ: Environ
) -> None:
    result = run("vipu-admin create user alice")

    file = directory / "alice.vipu-cli.hcl"
    match = re.fullmatch(
        r"create user \(alice\): success\. Access key is '(\S+)'\.\n"
        r"vipu configuration file for the user 'alice' written: alice\.vipu-cli\.hcl\n"
        r"Use 'vipu --config alice\.vipu-cli\.hcl' to switch to the user context\.\n",
        result.out,
    )
    assert match is not None
    assert read_config(file) == {
        "api-host": environ.get("VIPU_CLI_API_HOST", "localhost"),
        "api-port": environ.get("VIPU_CLI_API_PORT", "8090"),
        "api-user-id": "alice",
        "api-access-key": match[1],
    }
    assert file.stat().st_mode & 0o777 == 0o600
    is_embedded = "VIPU_CLI_API_HOST" not in environ
    assert ("The embedded inventory has no users." in result.err) == is_embedded


def test_no_user_is_made_whose_file_cannot_be_written(
    run: Run, directory: Path
) -> None:
    file = directory / "alice.vipu-cli.hcl"
    file.symlink_to("elsewhere")

    result = run("vipu-admin create user alice")

    assert (result.code, result.out) == (1, "")
    assert "already exists here" in result.err
    assert not os.path.lexists(directory / "elsewhere")
    assert "alice" not in run("vipu-admin list users").out


def test_a_refused_user_leaves_no_file(run: Run, directory: Path) -> None:
    assert run("vipu-admin create user alice --allocations nope").code == 1
    assert run("vipu-admin create user ../alice").code == 2
    assert list(directory.iterdir()) == []


def test_users_and_their_allocations_are_listed(make: Make, run: Run) -> None:
    make("vipu-admin create cluster c16 --preset pod16")
    # Each of these warns where there is no server.
    assert run("vipu-admin create user root-1 --is-admin").code == 0
    assert run("vipu-admin create user alice").code == 0
    make("vipu-admin create allocation a1 --agents ag0,ag1 --users alice")
    assert run("vipu-admin create user bob --allocations a1").code == 0

    users = json.loads(run("vipu-admin list users --json").out)
    allocation = json.loads(run("vipu get allocation a1 --json").out)
    table = run("vipu-admin get user bob").out

    assert users == [
        {"id": "root-1", "is_admin": True, "allocations": []},
        {"id": "alice", "is_admin": False, "allocations": ["a1"]},
        {"id": "bob", "is_admin": False, "allocations": ["a1"]},
    ]
    assert allocation["spec"] == {
        "cluster": "c16",
        "agents": ["ag0", "ag1"],
        "users": ["alice", "bob"],
    }
    assert " Allocations   | a1\n" in table
    make("vipu-admin remove user alice")
    assert "alice" not in run("vipu-admin list users").out
