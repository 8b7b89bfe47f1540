"""Real launches that hold emulated IPUs as long as they live, and no longer."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from conftest import BIN, Poprun, wait_for
from deaths import command_line
from vipu_servers import serving

from poprun.users import user_name
from poprun.vipu.inventory.embedded import EmbeddedInventory
from poprun.vipu.model import AgentStatus, PartitionRequest
from poprun.vipu.rules import presets

HOST = os.uname().nodename
LINE = re.compile(r"\d\d:\d\d:\d\d\.\d{3} (\d+) POPRUN \[([ID])\] (.*)")
LOCAL = ("--mpirun", "local")
TELL = """
import os, popdist
parent = os.environ.get("POPDIST_NODE_DEVICE_ID")
print(popdist.getInstanceIndex(), popdist.getDeviceId(), parent)
"""
HOLD = """
import os, popdist, time
popdist.getDeviceId()
open(f"holds-{os.environ['RANK']}", "w").close()
time.sleep(600)
"""


@pytest.fixture
def inventory(vipu_inventory: Path) -> Iterator[EmbeddedInventory]:
    """The inventory that the jobs of this test use."""
    opened = EmbeddedInventory(vipu_inventory, host=HOST)
    yield opened
    opened.close()


@pytest.fixture
def p64(inventory: EmbeddedInventory) -> EmbeddedInventory:
    """An inventory whose only partition is a reconfigurable one of 64 IPUs."""
    inventory.create_cluster(presets.preset("pod64", "c64"))
    inventory.create_partition(
        PartitionRequest(name="p64", size=64, reconfigurable=True)
    )
    return inventory


def size(instances: int, replicas: int | None = None) -> tuple[str, ...]:
    replicas = replicas or instances
    return (f"--num-instances={instances}", f"--num-replicas={replicas}")


def is_free(inventory: EmbeddedInventory) -> bool:
    return not (inventory.list_leases() or inventory.list_reservations())


def lines(stderr: str) -> list[str]:
    return [f"{m[2]} {m[3]}" for line in stderr.splitlines() if (m := LINE.match(line))]


def holding(poprun: Poprun, *words: str, ranks: int = 2) -> "subprocess.Popen[bytes]":
    """Start a job, and wait until each instance is attached to its device."""
    script = poprun.script("hold.py", HOLD)
    job = poprun.start(*LOCAL, *size(ranks), *words, sys.executable, script)
    files = [poprun.directory / f"holds-{rank}" for rank in range(ranks)]
    wait_for(lambda: all(f.exists() for f in files), "instances that are attached")
    for file in files:
        file.unlink()
    return job


# --- What the log says, as PopRun's of real launches.

OPTIONS_V_IPU = (
    '{"ipuLinkDomainSize":"64","ipuLinkConfiguration":"slidingWindow",'
    '"ipuLinkTopology":"mesh","gatewayMode":"true","instanceSize":"32"}'
)
OPTIONS_DEVICE = (
    '{"ipuLinkDomainSize":"64","ipuLinkConfiguration":"default",'
    '"ipuLinkTopology":"mesh","gatewayMode":"true","instanceSize":"1"}'
)


@pytest.mark.mpi
def test_the_log_of_a_launch_on_a_reconfigurable_partition_is_the_originals(
    poprun: Poprun, p64: EmbeddedInventory, openmpi5: str
) -> None:
    script = poprun.script("tell.py", TELL)

    ran = poprun("-vv", "--mpirun", openmpi5, *size(2), "python", script)

    assert ran.code == 0
    said = [line for line in lines(ran.stderr) if not line.startswith("D Using Open")]
    assert said[:15] == [
        "I Using V-IPU partition p64 as it is the only one available",
        "D Status for partition p64: OK (error 0)",
        "I Partition p64 already exists and is in state: PS_ACTIVE",
        "D The reconfigurable partition p64 is OK",
        "D Target options from environment: {}",
        f"D Target options from V-IPU partition: {OPTIONS_V_IPU}",
        "D Found 32 devices with 2 IPUs",
        "D Attached to device 64",
        "D Found 2 children (expected 2) of device 64 with 1 IPUs each",
        "I Preparing parent device 64",
        "D Device 64 ipuLinkDomainSize=64, ipuLinkConfiguration=Default, "
        "ipuLinkTopology=Mesh, gatewayMode=true, instanceSize=1",
        f"D Target options from Poplar device: {OPTIONS_DEVICE}",
        f"D Using target options: {OPTIONS_V_IPU}",
        "D No hosts specified; ignoring host-subnet setting",
        "D Default network/RNIC for host communication: None",
    ]
    assert "'-x' 'POPDIST_NODE_DEVICE_ID=64'" in said[15]
    assert "IPUOF_VIPU_API_GCD_ID" not in said[15]
    assert sorted(ran.stdout.splitlines()[-2:]) == ["0 0 64", "1 1 64"]
    assert is_free(p64)
    assert [p.name for p in p64.list_partitions()] == ["p64"]


# --- Which partition.


def test_a_job_without_any_option_gets_a_partition_and_gives_it_back(
    poprun: Poprun, inventory: EmbeddedInventory
) -> None:
    script = poprun.script("tell.py", TELL)

    ran = poprun(*LOCAL, *size(4, 8), sys.executable, script)

    assert (ran.code, ran.stderr) == (0, "")
    # The pairs of a partition of 8 IPUs.
    assert sorted(ran.stdout.splitlines()) == [
        *("0 8 None", "1 9 None", "2 10 None", "3 11 None")
    ]
    assert is_free(inventory)
    assert inventory.list_partitions() == ()


def test_a_job_gets_the_next_larger_partition(poprun: Poprun) -> None:
    ran = poprun("-v", *LOCAL, *size(3), "--vipu-partition=P", "true")

    assert ran.code == 0
    assert lines(ran.stderr)[0] == (
        "I The job needs 3 IPUs, and its partition P has 4: the size of a partition "
        "is a power of two"
    )


@pytest.mark.parametrize(("remove", "left"), [("yes", []), ("no", ["P"])])
def test_a_partition_that_is_made_is_removed_unless_it_is_to_stay(
    poprun: Poprun, inventory: EmbeddedInventory, remove: str, left: list[str]
) -> None:
    words = (*LOCAL, *size(2, 4), "--vipu-partition=P", f"--remove-partition={remove}")

    assert poprun(*words, "true").code == 0

    assert [p.name for p in inventory.list_partitions()] == left
    # The next job finds it, and does not remove what it has not made.
    assert poprun(*LOCAL, *size(2, 4), "--vipu-partition=P", "true").code == 0
    assert [p.name for p in inventory.list_partitions()] == left
    assert is_free(inventory)


@pytest.mark.parametrize(
    ("words", "resets"),
    [((), 1), (("--reset-partition=yes",), 1), (("--reset-partition=no",), 0)],
)
def test_a_partition_is_reset_by_default_unless_it_is_reconfigurable(
    poprun: Poprun, p64: EmbeddedInventory, words: tuple[str, ...], resets: int
) -> None:
    p64.remove_partition("p64")
    p64.create_partition(PartitionRequest(name="P", size=4, num_gcds=2, num_replicas=4))
    p64.create_partition(PartitionRequest(name="R", size=4, reconfigurable=True))

    for name in ("P", "R"):
        ran = poprun(*LOCAL, *size(2, 4), f"--vipu-partition={name}", *words, "true")
        assert (ran.code, ran.stderr) == (0, "")

    assert p64.get_partition("P").generation == resets
    assert p64.get_partition("R").generation == int(words == ("--reset-partition=yes",))


def test_a_partition_that_does_not_fit_is_updated_if_the_user_lets_it(
    poprun: Poprun, inventory: EmbeddedInventory
) -> None:
    inventory.create_cluster(presets.preset("pod64", "c64"))
    inventory.create_partition(
        PartitionRequest(name="P", size=4, num_gcds=2, num_replicas=4)
    )
    words = (*LOCAL, *size(4, 8), "--vipu-partition=P")

    refused = poprun(*words, "true")
    assert refused.code == 125
    assert refused.stderr == (
        "poprun: error: Partition P (ACTIVE, 4 IPUs, 2 GCDs, 4 replicas) has 4 IPUs "
        "where the job asks for 8 and 2 GCDs where the job asks for 4 and 4 replicas "
        "where the job asks for 8. Let poprun change the partition with "
        "--update-partition=yes, name another with --vipu-partition, or request the "
        "same values.\n"
    )

    assert poprun(*words, "--update-partition=yes", "true").code == 0
    found = inventory.get_partition("P")
    assert (found.size, found.num_gcds, found.num_replicas) == (8, 4, 8)


def test_routing_and_sync_type_are_those_of_the_options(
    poprun: Poprun, inventory: EmbeddedInventory
) -> None:
    ran = poprun(
        *(*LOCAL, *size(1, 4), "--vipu-partition=P", "--remove-partition=no"),
        *("--sync-type=ST_POD_NATIVE_DEFAULT", "--ipu-link-routing-type=BTNC"),
        *("--gw-link-routing-type=RT_DEFAULT", "--vipu-cluster=pod64", "true"),
    )

    assert (ran.code, ran.stderr) == (0, "")
    found = inventory.get_partition("P")
    assert (found.sync_type, found.link_routing) == ("pod-native-default", "btnc")

    other = poprun(*LOCAL, *size(1, 4), "--sync-type=c2-compatible", "-v", "true")
    # One of its own, because the only one there is does not fit.
    assert other.code == 0
    assert "sync type pod-native-default where the job asks for" in other.stderr


@pytest.mark.parametrize("option", ["allocation", "cluster"])
def test_an_unknown_place_is_answered_with_those_there_are(
    poprun: Poprun, option: str
) -> None:
    ran = poprun(*LOCAL, f"--vipu-{option}=A8", "true")

    assert ran.code == 125
    assert f"There is no {option} 'A8'" in ran.stderr
    assert "pod64" in ran.stderr


def test_a_partition_that_never_gets_active_is_tried_so_often(
    poprun: Poprun, inventory: EmbeddedInventory
) -> None:
    inventory.create_cluster(presets.preset("pod4", "c4"))
    [agent] = inventory.list_agents()
    inventory.set_agent_status(agent.name, AgentStatus.DOWN)

    ran = poprun(*LOCAL, "-v", "--vipu-partition-attempts=2", "true")

    assert ran.code == 125
    assert lines(ran.stderr)[0].startswith("I Attempt 1 of 2 failed: Partition ")
    assert f"PS_ERROR, not PS_ACTIVE: agent {agent.name}" in ran.stderr
    assert inventory.list_partitions() == ()


def test_offline_mode_touches_no_inventory(
    poprun: Poprun, vipu_inventory: Path
) -> None:
    probe = "import sys; sys.exit('sqlite3' in sys.modules)"
    ran = poprun(*LOCAL, "--offline-mode=1", sys.executable, "-c", probe)

    assert ran.code == 0
    assert not vipu_inventory.exists()


def test_a_dry_run_allocates_nothing(poprun: Poprun, vipu_inventory: Path) -> None:
    ran = poprun("--dry-run", *size(2), "--vipu-partition=P", "true")

    assert ran.stdout.endswith(
        "\npartition: P\n  asked of the inventory of this user on this machine\n"
        "  for 2 replicas of 1 IPU in 2 instances\n"
        "  It would be made: 2 IPUs, 1 ILD.\n"
    )
    assert not vipu_inventory.exists()


def test_a_dry_run_shows_the_partition_that_would_be_granted(
    poprun: Poprun, p64: EmbeddedInventory
) -> None:
    ran = poprun("--dry-run", *size(2), "--mpirun=local", "true")

    assert "\n  POPDIST_NODE_DEVICE_ID=64\n" in ran.stdout
    assert "\n  IPUOF_VIPU_API_PARTITION_ID=p64\n" in ran.stdout
    assert ran.stdout.endswith("  It exists: 64 IPUs, 1 ILD, the parent device 64.\n")
    assert is_free(p64)


def test_a_dry_run_says_why_no_partition_would_be_granted(
    poprun: Poprun, p64: EmbeddedInventory
) -> None:
    ran = poprun("--dry-run", *size(128), "--vipu-partition=p64", "true")

    assert ran.code == 0
    assert "\n  The request would be refused now: Partition p64 (" in ran.stdout
    assert p64.get_partition("p64").size == 64


def test_a_dry_run_shows_a_partition_as_it_would_be_changed(
    poprun: Poprun, inventory: EmbeddedInventory
) -> None:
    inventory.create_cluster(presets.preset("pod64", "c64"))
    inventory.create_partition(PartitionRequest(name="p8", size=8, num_gcds=2))
    update = ("--vipu-partition=p8", "--update-partition=yes")
    ran = poprun("--dry-run", *size(2, 32), *update, "true")

    assert ran.stdout.endswith("\n  It exists: 32 IPUs, 1 ILD.\n")
    assert inventory.get_partition("p8").size == 8


def test_a_dry_run_without_a_server_says_so(poprun: Poprun) -> None:
    server = ("--vipu-server-host=127.0.0.1", "--vipu-server-port=9")
    ran = poprun("--dry-run", *size(2), *server, "true")

    assert (ran.code, ran.stderr) == (0, "")
    assert "\n  V-IPU cannot be queried: No V-IPU server answers at" in ran.stdout


def test_processes_hold_no_ipus(poprun: Poprun, inventory: EmbeddedInventory) -> None:
    inventory.create_cluster(presets.preset("pod64", "c64"))
    show = "env | grep -E 'IPUOF|POPLAR'; vipu list partitions | grep -c poprun-; :"
    none = poprun(*LOCAL, "-n", "1", "sh", "-c", show)
    some = poprun(*LOCAL, "-n", "1", "--offline-mode=no", "sh", "-c", show)

    assert (none.code, none.stderr, none.stdout) == (0, "", "0\n")
    assert (some.code, some.stderr, some.stdout[-3:]) == (0, "", "\n1\n")
    assert "IPUOF_VIPU_API_PARTITION_ID=poprun-" in some.stdout


@pytest.mark.parametrize(
    ("words", "code"), [((), 0), (("--vipu-partition=P",), 125)], ids=["plain", "named"]
)
def test_without_a_place_for_an_inventory_a_job_runs_offline_with_one_warning(
    poprun: Poprun, words: tuple[str, ...], code: int
) -> None:
    where = {"POPRUN_VIPU_INVENTORY": "/proc/no/inventory.db"}

    show = "echo $POPDIST_OFFLINE_MODE"
    ran = poprun(*LOCAL, *words, "sh", "-c", show, environ=where)

    assert ran.code == code
    _, *hints = ran.stderr.splitlines()
    assert hints == (
        ["poprun: hint: Use --offline-mode=yes to run the job without IPUs."]
        if code
        else []
    )
    if code == 0:
        assert ran.stdout == "1\n"
        assert ran.stderr.startswith(
            "poprun: warning: The job runs in offline mode, without IPUs. The V-IPU "
            "inventory /proc/no/inventory.db cannot be opened: "
        )


def test_a_server_that_is_not_there_is_answered_with_the_command_that_starts_one(
    poprun: Poprun,
) -> None:
    ran = poprun(
        *(*LOCAL, "--vipu-partition=MyPartition", "--vipu-server-host=127.0.0.1"),
        *("--vipu-server-port=9", "--num-replicas=4", "--num-instances=1", "true"),
    )

    assert ran.code == 125
    assert "127.0.0.1:9" in ran.stderr
    assert "vipu-server" in ran.stderr
    assert "--vipu-server-host" in ran.stderr


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The port of a V-IPU server whose only partition is a reconfigurable p64."""
    database = tmp_path / "server.db"
    own = EmbeddedInventory(database, host=HOST)
    own.create_cluster(presets.preset("pod64", "c64"))
    user = user_name()
    own.create_partition(
        PartitionRequest(name="p64", size=64, reconfigurable=True, owner=user)
    )
    own.close()
    command = [str(BIN / "vipu-server"), "--port=0", f"--database={database}"]
    with subprocess.Popen(command, stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout
        said = process.stdout.readline()
        yield re.findall(r"http://127\.0\.0\.1:(\d+)", said)[0]
        process.terminate()


def test_the_log_of_a_launch_through_a_server_is_the_originals(
    poprun: Poprun, server: str
) -> None:
    home = poprun.directory / "home"
    home.mkdir()
    (home / ".vipu.hcl").write_text(f'api-host = "127.0.0.1"\napi-port = {server}\n')
    script = poprun.script("tell.py", TELL)
    code = "import os; print(os.environ['IPUOF_VIPU_API_PORT'])"

    ran = poprun(
        *("-vv", *LOCAL, *size(2), sys.executable, script), environ={"HOME": str(home)}
    )
    named = poprun(
        *LOCAL,
        *("--vipu-server-host=127.0.0.1", f"--vipu-server-port={server}"),
        *(sys.executable, "-c", code),
    )

    assert ran.code == 0
    assert lines(ran.stderr)[:8] == [
        f"I V-IPU server address picked up from 'vipu': 127.0.0.1:{server}",
        "I Using V-IPU partition p64 as it is the only one available",
        f"D Connecting to 127.0.0.1:{server}",
        "D Status for partition p64: OK (error 0)",
        "I Partition p64 already exists and is in state: PS_ACTIVE",
        "D The reconfigurable partition p64 is OK",
        "D Target options from environment: {}",
        f"D Target options from V-IPU partition: {OPTIONS_V_IPU}",
    ]
    assert sorted(ran.stdout.splitlines()[-2:]) == ["0 0 64", "1 1 64"]
    assert (named.code, named.stdout, named.stderr) == (0, f"{server}\n", "")


def test_on_a_secure_server_the_job_belongs_to_the_user_of_the_access_key(
    poprun: Poprun, tmp_path: Path
) -> None:
    home = poprun.directory / "home"
    home.mkdir()
    script = poprun.script("tell.py", TELL)
    with serving(tmp_path / "s.db", "--secure"):
        # Its first administrator is no user of this machine.
        (tmp_path / "admin.vipu-cli.hcl").rename(home / ".vipu.hcl")

        ran = poprun(
            *(*LOCAL, *size(2), "--vipu-partition=P", sys.executable, script),
            environ={"HOME": str(home)},
        )

    assert (ran.code, ran.stderr) == (0, "")
    assert len(ran.stdout.splitlines()) == 2


def test_ipus_of_a_server_that_is_away_at_the_end_are_free_when_it_is_back(
    poprun: Poprun, tmp_path: Path
) -> None:
    with serving(tmp_path / "s.db") as server:
        job = holding(
            poprun,
            *("--vipu-partition=P", "--vipu-server-host=127.0.0.1"),
            *(f"--vipu-server-port={server.port}", "--grace=0.3"),
        )
        server.kill()
        job.terminate()
        _, error = job.communicate(timeout=200)
        server.restart()
        inventory = server.inventory(admin=True)
        wait_for(lambda: inventory.list_leases() == (), "no lease")
        wait_for(lambda: inventory.list_partitions() == (), "no partition")

    assert job.returncode == 128 + signal.SIGTERM
    [warning] = [line for line in error.splitlines() if b"warning" in line]
    assert warning.startswith(b"poprun: warning: Could not release the IPUs of ")
    assert warning.endswith(
        b"They are free as soon as the inventory sees that the job has ended."
    )


def test_a_server_keeps_the_rules_of_the_original(poprun: Poprun, server: str) -> None:
    words = (*LOCAL, "--vipu-server-host=127.0.0.1", f"--vipu-server-port={server}")

    ran = poprun(*words, *size(3), "true")

    assert ran.code == 2
    assert ran.stderr == (
        "poprun: error: 3 replicas of 1 IPUs each need 3 IPUs, but a partition has a "
        "power of two. Ask for replicas and IPUs per replica that make 2 or 4 IPUs.\n"
    )


# --- Whose IPUs they are.


def test_a_partition_in_use_says_by_whom(
    poprun: Poprun, p64: EmbeddedInventory
) -> None:
    holding(poprun, "--num-replicas=64", "--vipu-partition=p64")

    ran = poprun(*LOCAL, "--vipu-partition=p64", "true")

    assert ran.code == 125
    assert re.search(
        r"Partition p64 \(ACTIVE, .*\) is in use: 64 of its 64 IPUs are held by user "
        rf"\S+, job [0-9a-f]{{32}}, host {HOST}, since 20",
        ran.stderr,
    )


def test_of_many_launches_for_the_last_ipus_those_that_fit_win(
    poprun: Poprun, p64: EmbeddedInventory
) -> None:
    script = poprun.script(
        "wait.py",
        "import os, pathlib, popdist, time\n"
        "popdist.getDeviceId()\n"
        "pathlib.Path(f'won-{os.getpid()}').touch()\n"
        "while not pathlib.Path('go').exists(): time.sleep(0.05)\n",
    )
    words = (*LOCAL, "--num-replicas=16", "--vipu-partition=p64")

    jobs = [poprun.start(*words, sys.executable, script) for _ in range(12)]
    losers = 8

    def ended() -> int:
        return sum(job.poll() is not None for job in jobs)

    wait_for(lambda: ended() == losers, "jobs that are refused")
    wait_for(lambda: len(list(poprun.directory.glob("won-*"))) == 4, "jobs that run")
    devices = [r.device for r in p64.list_reservations() if r.child is None]
    assert sorted(device.first for device in devices) == [0, 16, 32, 48]
    (poprun.directory / "go").touch()
    said = [job.communicate(timeout=200)[1].decode() for job in jobs]
    assert sorted(job.returncode for job in jobs) == [0] * 4 + [125] * 8
    assert sum("is in use" in text for text in said) == losers
    assert is_free(p64)


def guards_of(launcher: psutil.Process) -> list[psutil.Process]:
    """Return the guards of a job that live."""
    return [p for p in launcher.children() if "guard" in command_line(p.pid)]


@pytest.mark.parametrize("whom", ["poprun", "guard", "both", "instance"])
def test_ipus_are_free_after_kill_9(
    poprun: Poprun, inventory: EmbeddedInventory, whom: str
) -> None:
    job = holding(poprun, "--vipu-partition=P")
    me = psutil.Process(job.pid)
    guard = guards_of(me)[0]
    below = me.children(recursive=True)
    instance = next(p for p in below if "hold.py" in command_line(p.pid))
    assert [p.name for p in inventory.list_partitions()] == ["P"]

    victims = {"poprun": [me], "guard": [guard], "both": [me, guard]}
    for process in victims.get(whom, [instance]):
        process.kill()
    if whom == "guard":
        # Another guard takes its place, and then poprun is killed.
        wait_for(
            lambda: any(p.pid != guard.pid for p in guards_of(me)), "another guard"
        )
        me.kill()
    job.wait(200)

    wait_for(lambda: is_free(inventory), "free IPUs")
    wait_for(lambda: inventory.list_partitions() == (), "no partition")


def test_a_guard_that_is_killed_takes_no_ipus_along(
    poprun: Poprun, inventory: EmbeddedInventory
) -> None:
    job = holding(poprun, "--vipu-partition=P")
    me = psutil.Process(job.pid)
    guards_of(me)[0].kill()

    def keeper() -> int | None:
        parents = [r for r in inventory.list_reservations() if r.child is None]
        return parents[0].process.pid if parents and parents[0].process else None

    wait_for(
        lambda: keeper() in [p.pid for p in guards_of(me)],
        "the new guard to hold the parent device",
    )
    job.terminate()
    assert job.wait(200) == 128 + signal.SIGTERM
    assert is_free(inventory)
    assert inventory.list_partitions() == ()


# --- Attaching.


def test_a_process_is_attached_as_long_as_it_lives(
    poprun: Poprun, inventory: EmbeddedInventory
) -> None:
    script = poprun.script(
        "child.py",
        "import pathlib, subprocess, sys, time\n"
        "code = 'import popdist; print(popdist.getDeviceId(), flush=True); input()'\n"
        "p = subprocess.Popen([sys.executable, '-c', code], stdin=-1)\n"
        "while not pathlib.Path('go').exists(): time.sleep(0.05)\n"
        "p.communicate(b'x')\n"
        "pathlib.Path('gone').touch()\n"
        "while not pathlib.Path('end').exists(): time.sleep(0.05)\n",
    )
    job = poprun.start(*LOCAL, sys.executable, script)

    def attached() -> list[int]:
        return [
            r.process.pid
            for r in inventory.list_reservations()
            if r.child == 0 and r.process is not None
        ]

    wait_for(lambda: len(attached()) == 1, "a process that is attached")
    (poprun.directory / "go").touch()
    wait_for(lambda: (poprun.directory / "gone").exists(), "the end of the process")
    wait_for(lambda: attached() == [], "no process that is attached")
    (poprun.directory / "end").touch()
    assert job.wait(200) == 0


def test_the_processes_of_one_instance_share_its_device(poprun: Poprun) -> None:
    script = poprun.script(
        "share.py",
        "import os, popdist, subprocess, sys\n"
        "code = 'import popdist; print(popdist.getDeviceId())'\n"
        "first = popdist.getDeviceId()\n"
        "out = subprocess.check_output([sys.executable, '-c', code])\n"
        "if (pid := os.fork()) == 0:\n"
        "    os._exit(popdist.getDeviceId() != first)\n"
        "assert os.waitpid(pid, 0)[1] == 0\n"
        "print(first, int(out), popdist.getDeviceId())\n",
    )

    ran = poprun(*LOCAL, *size(2), sys.executable, script)

    assert (ran.code, ran.stderr) == (0, "")
    assert sorted(ran.stdout.splitlines()) == ["0 0 0", "1 1 1"]


def test_a_device_that_was_taken_away_is_an_error_in_words(
    poprun: Poprun, inventory: EmbeddedInventory
) -> None:
    script = poprun.script(
        "late.py",
        "import pathlib, popdist, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "pathlib.Path('runs').touch()\n"
        "while not pathlib.Path('go').exists(): time.sleep(0.05)\n"
        "popdist.getDeviceId()\n",
    )
    words = ("--vipu-partition=P", "--grace=200", sys.executable, script)
    job = poprun.start(*LOCAL, *words)
    wait_for(lambda: (poprun.directory / "runs").exists(), "the program")
    inventory.remove_partition("P", force=True)
    (poprun.directory / "go").touch()

    _, err = job.communicate(timeout=200)

    # poprun may see it before the program does, and stops the job then.
    assert job.returncode in (1, 125)
    assert (
        "DeviceError: Instance 0 cannot attach to device 0 (1 IPU) of partition P: The "
        "job's lease of its IPUs has ended"
    ) in err.decode()


LOST = (
    "The job's lease of its IPUs has ended, and others may have them. It was not "
    "renewed in time, or the partition was removed with --force. Start the job again."
)


def test_a_job_whose_partition_is_removed_by_force_is_stopped_in_words(
    poprun: Poprun, inventory: EmbeddedInventory
) -> None:
    job = holding(poprun, "--vipu-partition=P")
    inventory.remove_partition("P", force=True)

    _, err = job.communicate(timeout=200)

    assert job.returncode == 125
    assert err.decode().splitlines()[-1] == (
        f"poprun: error: The job lost its IPUs, and was stopped. {LOST}"
    )


def test_a_job_that_ends_without_its_ipus_does_not_succeed(
    poprun: Poprun, inventory: EmbeddedInventory
) -> None:
    wait = "touch runs; until test -e go; do sleep 0.05; done"
    job = poprun.start(*LOCAL, "--vipu-partition=P", "sh", "-c", wait)
    wait_for(lambda: (poprun.directory / "runs").exists(), "the program")
    inventory.remove_partition("P", force=True)
    (poprun.directory / "go").touch()

    _, err = job.communicate(timeout=200)

    # On a slow machine it is stopped before it ends by itself.
    ended = (
        "All instances ended with exit code 0, but the job had lost its IPUs by then."
    )
    stopped = "The job lost its IPUs, and was stopped."
    assert job.returncode == 125
    assert err.decode().splitlines()[-1] in (
        f"poprun: error: {ended} {LOST}",
        f"poprun: error: {stopped} {LOST}",
    )


def test_a_device_is_refused_to_a_program_that_wants_more_ipus(
    poprun: Poprun,
) -> None:
    code = (
        "import os, popdist\n"
        "os.environ['POPDIST_NUM_IPUS_PER_REPLICA'] = '2'\n"
        "popdist.getDeviceId()\n"
    )
    ran = poprun(*LOCAL, sys.executable, "-c", code)

    assert ran.code == 1
    assert "it was asked for with 2 IPUs. Ask for 1, or start the job" in ran.stderr


def test_an_instance_whose_poprun_is_gone_says_so(poprun: Poprun) -> None:
    code = "import popdist; popdist.getDeviceId()"
    environ = {
        "POPDIST_CONTROL": "@poprun-no-such-socket/key",
        "POPDIST_OFFLINE_MODE": "0",
        "IPUOF_VIPU_API_PARTITION_ID": "P",
    }
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env={**poprun.environ, **environ},
        capture_output=True,
        check=False,
    )

    assert ended.returncode == 1
    assert (
        b"Instance 0 cannot attach to its device (1 IPUs) of partition P, because "
        b"poprun, which holds the IPUs of the job, cannot be asked: Connection refused."
    ) in ended.stderr


def test_an_inner_job_has_a_partition_of_its_own(poprun: Poprun) -> None:
    script = poprun.script("tell.py", TELL)
    inner = (*LOCAL, *size(2), sys.executable, script)

    ran = poprun(*LOCAL, "--num-replicas=8", "poprun", *inner)

    assert (ran.code, ran.stderr) == (0, "")
    assert sorted(ran.stdout.splitlines()) == ["0 0 None", "1 1 None"]
