"""What the commands show of partitions, and of the jobs that use them."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from vipu_commands import Run, inventories

from poprun.vipu import liveness
from poprun.vipu.inventory.interface import Inventory
from poprun.vipu.leases import Grant, ProcessIdentity

pytestmark = [inventories, pytest.mark.usefixtures("pod64")]

Make = Callable[..., None]
Hold = Callable[..., Grant]


def properties(table: str) -> dict[str, str]:
    lines = [line for line in table.splitlines() if "|" in line]
    pairs = (line.split("|", 1) for line in lines)
    return {name.strip(): value.strip() for name, value in pairs}


def test_who_holds_devices_of_a_partition_is_shown(
    make: Make, run: Run, hold: Hold
) -> None:
    make(
        "vipu create partition p8 --size 8 --reconfigurable",
        "vipu create partition p4 --size 4",
    )
    hold("p8", 2)
    hold("p8", 4)

    table = run("vipu list partitions -v").out
    header, _, first, second, unused, _ = (
        [cell.strip() for cell in line.split("|")] for line in table.splitlines()
    )

    assert header[-5:] == ["User", "Job", "Host", "PID", "Since"]
    assert (first[0], first[8:11]) == ("p8", ["bob", "j7", "h1"])
    assert (second[0], second[8:11]) == ("", ["bob", "j7", "h1"])
    assert (unused[0], unused[8:]) == ("p4", ["-"] * 5)


def test_get_partition_shows_what_it_is_and_who_holds_it(
    make: Make, run: Run, hold: Hold
) -> None:
    make("vipu create partition p8 --size 8 --num-gcds 2")

    unused = properties(run("vipu get partition p8").out)
    hold("p8", 2)
    used = run("vipu get partition p8").out

    assert unused["Agents"] == "ag0 ag1"
    assert (unused["State"], unused["GCDs"], unused["IPUs per GCD"]) == (
        "ACTIVE",
        "2",
        "4",
    )
    assert unused["In use by"] == "-"
    assert used.splitlines()[-2].split("|")[:3] == [" bob  ", " j7  ", " h1   "]


def test_get_partition_shows_which_processes_are_attached_and_where(
    make: Make, run: Run, hold: Hold, inventory: Inventory
) -> None:
    make("vipu create partition p8 --size 8 --reconfigurable")
    lease = hold("p8", 2).lease.id
    theirs = ProcessIdentity(
        pid=7, start_time=5, boot_id="another boot", pid_namespace="pid:[1]"
    )
    inventory.attach(lease, 0, liveness.identify())
    inventory.attach(lease, 1, theirs, "h2")

    shown = run("vipu get partition p8").out.splitlines()[-5:-1]

    rows = [[cell.strip() for cell in line.split("|")] for line in shown]
    assert rows[0] == ["Instance", "Device", "IPUs", "Job", "Host", "PID"]
    assert rows[2:] == [
        ["0", "0", "1", "j7", "h1", str(os.getpid())],
        ["1", "1", "1", "j7", "h2", "7"],
    ]
    names = ("instance", "device", "ipus", "job", "host", "pid")
    attached = [
        dict(zip(names, values, strict=True))
        for values in ((0, 0, 1, "j7", "h1", os.getpid()), (1, 1, 1, "j7", "h2", 7))
    ]
    entry = json.loads(run("vipu get partition p8 --json").out)
    [cluster] = json.loads(run("vipu show --json").out)["clusters"]
    assert entry["partition"]["attached"] == attached
    assert cluster["partitions"][0]["attached"] == attached


def test_json_has_the_shape_of_the_original(make: Make, run: Run, hold: Hold) -> None:
    make("vipu create partition p4 --size 4 --num-gcds 2")
    hold("p4", 2)

    [entry] = json.loads(run("vipu -a --showjson list partition").out)
    [cluster] = json.loads(run("vipu -a --showjson list cluster").out)

    spec = entry["partition"]["spec"]
    assert (entry["partition"]["id"], spec["num_gcds"], spec["num_replicas"]) == (
        "p4",
        2,
        2,
    )
    assert spec["ipus"] == ["ag0:0", "ag0:1", "ag0:2", "ag0:3"]
    assert entry["partition"]["state"] == "PS_ACTIVE"
    [holder] = entry["partition"]["holders"]
    assert (holder["user"], holder["job"]) == ("bob", "j7")
    # How PopTorch's tests found IPUs that no partition has.
    [ild] = cluster["spec"]["ipu_link_domains"]
    free = [ipu for ipu in ild["ipus"] if ipu not in spec["ipus"]]
    assert (len(free), free[0], free[-1]) == (60, "ag1:0", "ag15:3")
    assert json.loads(run("vipu get partition p4 --json").out) == entry


def test_the_ipuof_configuration_of_a_gcd_names_its_ipus(make: Make, run: Run) -> None:
    make(
        *(f"vipu-admin create agent m{n} --host 10.9.0.{n}" for n in range(2)),
        "vipu-admin create cluster c8 --agents m0,m1",
        "vipu create partition p8 --cluster c8 --size 8 --num-gcds 4 "
        "--total-num-replicas 8",
    )

    one = json.loads(run("vipu get partition p8 --gcd 2 --ipu-configs").out)
    every = json.loads(run("vipu get partition p8 --ipuof-configs").out)

    assert one["attributes"] == {
        "Partition Id": "p8",
        "GCD Id": "2",
        "GCD Count": "4",
        "Replica Count": "8",
        "Reconfigurable": "false",
        "Sync Type": "ST_POD_NATIVE_DEFAULT",
        "ipuLinkDomainSize": "8",
        "ipuLinkConfiguration": "default",
        "ipuLinkTopology": "mesh",
        "gatewayMode": "true",
        "instanceSize": "2",
    }
    assert [(device["ip"], device["ipu"]) for device in one["devices"]] == [
        ("10.9.0.1", 0),
        ("10.9.0.1", 1),
    ]
    assert [config["attributes"]["GCD Id"] for config in every] == list("0123")
    assert every[2] == one


def test_a_partition_in_use_stays_unless_it_is_forced(
    make: Make, run: Run, hold: Hold
) -> None:
    make("vipu create partition p4 --size 4")
    hold("p4", 4)

    for verb in ("remove", "reset"):
        refused = run(f"vipu {verb} partition p4")
        assert (refused.code, refused.out) == (1, "")
        assert "in use by user bob, job j7, host h1, since 2" in refused.err

    make("vipu remove partition p4 --force")
    assert "p4" not in run("vipu list partitions").out


def test_several_partitions_are_removed_up_to_the_first_that_cannot_be(
    make: Make, run: Run
) -> None:
    make(*(f"vipu create partition p{n} --size 4" for n in range(3)))

    result = run("vipu remove partition p0 nope p1")

    assert result.out == "remove partition (p0): success.\n"
    assert (result.code, "'nope'" in result.err) == (1, True)
    assert "p1" in run("vipu list partitions").out


@pytest.mark.parametrize(
    ("status", "state"), [("down", "ERROR"), ("unknown", "PENDING")]
)
def test_a_machine_that_fails_fails_its_partitions(
    make: Make, run: Run, status: str, state: str
) -> None:
    make("vipu create partition p4 --size 4")
    make(f"vipu-admin update agent ag0 --status {status}")

    failed = run("vipu reset partition p4")
    shown = properties(run("vipu get partition p4").out)
    make("vipu-admin update agent ag0 --status up", "vipu reset partition p4")

    assert (failed.code, failed.out) == (1, "")
    assert f"its state is {state}, because agent ag0" in failed.err
    assert (shown["State"], "ag0" in shown["Reason"]) == (state, True)
    assert "ACTIVE" in run("vipu list partitions").out


@pytest.mark.parametrize("flag", ["--not-reconfigurable", "--reconfigurable=false"])
def test_a_partition_is_updated_in_part(make: Make, run: Run, flag: str) -> None:
    make(
        "vipu create partition p4 --size 4 --reconfigurable",
        f"vipu update partition p4 --size 8 {flag} --routing swnc",
    )

    shown = properties(run("vipu get partition p4").out)

    assert (shown["Size"], shown["Reconfigurable"]) == ("8", "no")
    assert shown["ILD Routing"] == "SWNC"


def test_several_partitions_are_updated(make: Make, run: Run) -> None:
    make("vipu create partition p0 --size 4", "vipu create partition p1 --size 4")

    result = run("vipu update partition p0 p1 --size 8")

    assert result.out == (
        "update partition (p0): success.\nupdate partition (p1): success.\n"
    )
    entries = json.loads(run("vipu list partitions --json").out)
    assert [entry["partition"]["spec"]["size"] for entry in entries] == [8, 8]


def test_a_refusal_speaks_of_what_the_command_has(make: Make, run: Run) -> None:
    make("vipu create partition p64 --size 64")

    result = run("vipu create partition q --size 8")

    assert (result.code, result.out) == (1, "")
    assert "all 64 IPUs of cluster pod64 are in use" in result.err
    assert "--vipu" not in result.err
    assert "replica" not in result.err


def test_a_reconfigurable_partition_has_one_sync_type(run: Run) -> None:
    sync = "--reconfigurable --sync-type pod-native-default"
    result = run(f"vipu create partition p --size 8 {sync}")

    assert (result.code, result.out) == (2, "")
    assert "a reconfigurable partition has c2-compatible" in result.err


def test_the_configuration_files_of_a_partition_are_written_and_removed(
    make: Make, run: Run, environ: dict[str, str]
) -> None:
    folder = Path(environ["HOME"]) / ".ipuof.conf.d"

    def files() -> dict[str, int]:
        """Return how many IPUs each file has."""
        return {
            file.name: len(json.loads(file.read_text())["devices"])
            for file in sorted(folder.iterdir())
        }

    make("vipu create partition p --size 8 --num-gcds 2")
    make("vipu create partition p_gcd0 --size 1")
    assert files() == {
        "p_gcd0_gcd0_ipuof.conf": 1,
        "p_gcd0_ipuof.conf": 4,
        "p_gcd1_ipuof.conf": 4,
    }
    assert (folder / "p_gcd0_ipuof.conf").stat().st_mode & 0o777 == 0o600

    make("vipu update partition p --num-gcds 1")
    assert files() == {"p_gcd0_gcd0_ipuof.conf": 1, "p_gcd0_ipuof.conf": 8}
    make("vipu remove partition p")
    assert files() == {"p_gcd0_gcd0_ipuof.conf": 1}


def test_a_home_that_cannot_be_written_to_is_a_warning(
    run: Run, environ: dict[str, str]
) -> None:
    (Path(environ["HOME"]) / ".ipuof.conf.d").write_text("")

    result = run("vipu create partition p --size 4")

    assert (result.code, result.out) == (0, "create partition (p): success.\n")
    assert result.err.startswith(
        "vipu: warning: The IPUoF configuration files of partition p cannot be "
    )


def test_at_an_index_a_reconfigurable_partition_gets_the_sync_type_that_it_can_have(
    run: Run,
) -> None:
    result = run(
        "vipu create partition p --size 4 --reconfigurable --index 1 "
        "--sync-type pod-native-default"
    )

    assert result == (
        0,
        "create partition (p): success.\n",
        "vipu: warning: Partition p is reconfigurable, so its sync type is "
        "c2-compatible, not pod-native-default.\n",
    )
    assert "c2-compatible" in run("vipu get partition p").out
