"""What -vv says of a launch on each kind of partition, as PopRun's logs of real ones.

Line by line, up to the line with mpirun's command. The first part is about the
partition, the second about the devices of the job.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Poprun, wait_for
from vipu_servers import Server, serving

from poprun.vipu.inventory.embedded import EmbeddedInventory
from poprun.vipu.model import AgentStatus, ClusterRequest, PartitionRequest
from poprun.vipu.rules import presets

LINE = re.compile(r"\d\d:\d\d:\d\d\.\d{3} \d+ POPRUN \[([ID])\] (.*)")
LOCAL = ("--mpirun", "local")
NETWORK = [
    "D No hosts specified; ignoring host-subnet setting",
    "D Default network/RNIC for host communication: None",
]
ONLY = "I Using V-IPU partition {} as it is the only one available"


def options(ilds: int, configuration: str, topology: str, instance: int) -> str:
    return (
        f'{{"ipuLinkDomainSize":"{ilds}","ipuLinkConfiguration":"{configuration}",'
        f'"ipuLinkTopology":"{topology}","gatewayMode":"true",'
        f'"instanceSize":"{instance}"}}'
    )


def job(instances: int, replicas: int, ipus: int = 1) -> tuple[str, ...]:
    return (
        f"--num-instances={instances}",
        f"--num-replicas={replicas}",
        f"--ipus-per-replica={ipus}",
    )


def log(poprun: Poprun, *words: str) -> list[str]:
    """Run a job, and return its log up to the line with the command."""
    ran = poprun("-vv", *LOCAL, *words, "true")
    assert ran.code == 0, ran.stderr
    said = [f"{m[1]} {m[2]}" for m in map(LINE.match, ran.stderr.splitlines()) if m]
    said = [re.sub("poprun-[0-9a-f]{32}", "OWN", line) for line in said]
    command = [line.startswith("I Running command: ") for line in said].index(True)
    # PopRun does not log which mpirun it has found.
    return [line for line in said[:command] if " own launcher " not in line]


@pytest.fixture
def inventory(vipu_inventory: Path) -> Iterator[EmbeddedInventory]:
    """A rack, without any partition."""
    opened = EmbeddedInventory(vipu_inventory, host=os.uname().nodename)
    opened.create_cluster(presets.preset("pod64", "c64"))
    yield opened
    opened.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server with one rack, without any partition."""
    with serving(tmp_path / "server.db") as started:
        yield started


# On a reconfigurable partition of 64 IPUs: instances, replicas and IPUs per replica;
# the first devices; IPUs of a child; what V-IPU and what the parent device say.
SHAPES = {
    "1 x 64 x 1": ((1, 64, 1), 1, 64, 126, 64, 64, 64),
    "1 x 16 x 4": ((1, 16, 4), 1, 64, 126, 64, 64, 64),
    "1 x 1 x 1": ((1, 1, 1), 64, 1, 0, 1, 64, 1),
    "1 x 4 x 1": ((1, 4, 1), 16, 4, 96, 4, 64, 4),
    "2 x 2 x 1": ((2, 2, 1), 32, 2, 64, 1, 32, 1),
    "2 x 2 x 8": ((2, 2, 8), 4, 16, 120, 8, 32, 8),
    "2 x 4 x 2": ((2, 4, 2), 8, 8, 112, 4, 32, 4),
    "4 x 4 x 1": ((4, 4, 1), 16, 4, 96, 1, 16, 1),
    "4 x 16 x 4": ((4, 16, 4), 1, 64, 126, 16, 16, 16),
    "8 x 16 x 2": ((8, 16, 2), 2, 32, 124, 4, 8, 4),
    "16 x 16 x 1": ((16, 16, 1), 4, 16, 120, 1, 4, 1),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_the_parent_device_of_each_shape(
    poprun: Poprun,
    inventory: EmbeddedInventory,
    shape: tuple[tuple[int, int, int], int, int, int, int, int, int],
) -> None:
    size, count, parent, number, child, by_vipu, by_device = shape
    inventory.create_partition(
        PartitionRequest(name="p64", size=64, reconfigurable=True)
    )
    instances = size[0]
    # Only the device that is the whole rack has a closed ring.
    configuration, topology = (
        ("slidingWindow", "torus") if number == 126 else ("default", "mesh")
    )
    children = (
        f"D Found {instances} children (expected {instances}) of device {number} with "
        f"{child} IPUs each"
    )

    assert log(poprun, *job(*size)) == [
        ONLY.format("p64"),
        "D Status for partition p64: OK (error 0)",
        "I Partition p64 already exists and is in state: PS_ACTIVE",
        "D The reconfigurable partition p64 is OK",
        "D Target options from environment: {}",
        "D Target options from V-IPU partition: "
        + options(64, "slidingWindow", topology, by_vipu),
        f"D Found {count} devices with {parent} IPUs",
        f"D Attached to device {number}",
        *([children] if instances > 1 else []),
        f"I Preparing parent device {number}",
        f"D Device {number} ipuLinkDomainSize=64, "
        f"ipuLinkConfiguration={configuration[:1].upper()}{configuration[1:]}, "
        f"ipuLinkTopology={topology.capitalize()}, gatewayMode=true, "
        f"instanceSize={by_device}",
        "D Target options from Poplar device: "
        + options(64, configuration, topology, by_device),
        "D Using target options: " + options(64, "slidingWindow", topology, by_vipu),
        *NETWORK,
    ]


def test_a_small_reconfigurable_partition_through_a_server(
    poprun: Poprun, server: Server
) -> None:
    # The partition that Slurm makes for a job of 4 IPUs.
    server.inventory(admin=True).create_partition(
        PartitionRequest(name="slurm_2657", size=4, reconfigurable=True)
    )
    address = f"127.0.0.1:{server.port}"
    (poprun.directory / ".vipu.hcl").write_text(
        f'api-host = "127.0.0.1"\napi-port = "{server.port}"\n'
    )
    poprun.environ["HOME"] = str(poprun.directory)

    assert log(poprun, *job(1, 4)) == [
        f"I V-IPU server address picked up from 'vipu': {address}",
        ONLY.format("slurm_2657"),
        f"D Connecting to {address}",
        "D Status for partition slurm_2657: OK (error 0)",
        "I Partition slurm_2657 already exists and is in state: PS_ACTIVE",
        "D The reconfigurable partition slurm_2657 is OK",
        "D Target options from environment: {}",
        "D Target options from V-IPU partition: " + options(4, "default", "mesh", 4),
        "D Found 1 devices with 4 IPUs",
        "D Attached to device 6",
        "I Preparing parent device 6",
        "D Device 6 ipuLinkDomainSize=64, ipuLinkConfiguration=Default, "
        "ipuLinkTopology=Mesh, gatewayMode=true, instanceSize=4",
        "D Target options from Poplar device: " + options(64, "default", "mesh", 4),
        "D Using target options: " + options(4, "default", "mesh", 4),
        *NETWORK,
    ]


def test_the_second_job_on_a_partition_gets_the_next_devices(
    poprun: Poprun, inventory: EmbeddedInventory
) -> None:
    inventory.create_partition(
        PartitionRequest(name="p64", size=64, reconfigurable=True)
    )
    words = (*LOCAL, *job(2, 2), "--vipu-partition=p64", "sh", "-c")
    first = poprun.start(*words, "touch runs; while [ -e runs ]; do sleep 0.1; done")
    wait_for((poprun.directory / "runs").exists, "the first job")

    said = log(poprun, *job(2, 2), "--vipu-partition=p64")
    (poprun.directory / "runs").unlink()

    assert said[5:9] == [
        "D Found 32 devices with 2 IPUs",
        "D Failed to attach to device 64",
        "D Attached to device 65",
        "D Found 2 children (expected 2) of device 65 with 1 IPUs each",
    ]
    assert first.wait(200) == 0


def test_a_partition_of_a_whole_rack_that_is_reset(
    poprun: Poprun, inventory: EmbeddedInventory
) -> None:
    name = "p-bert-poprun-64ipus-gc-dev-0"
    inventory.create_partition(PartitionRequest(name=name, size=64, num_replicas=16))
    given = options(64, "slidingWindow", "torus", 64)

    assert log(poprun, *job(1, 16, 4), f"--vipu-partition={name}") == [
        f"D Status for partition {name}: OK (error 0)",
        f"I Partition {name} already exists and is in state: PS_ACTIVE",
        f"D Done polling, final state of {name}: PS_ACTIVE",
        "D Target options from environment: {}",
        f"D Target options from V-IPU partition: {given}",
        f"D Using target options: {given}",
        *NETWORK,
    ]


def test_a_partition_that_is_not_reset_is_not_polled(
    poprun: Poprun, inventory: EmbeddedInventory
) -> None:
    inventory.create_partition(
        PartitionRequest(name="P", size=8, num_gcds=4, num_replicas=8)
    )
    words = (*job(4, 8), "--vipu-partition=P", "--reset-partition=no")

    assert log(poprun, *words)[:3] == [
        "D Status for partition P: OK (error 0)",
        "I Partition P already exists and is in state: PS_ACTIVE",
        "D Target options from environment: {}",
    ]
    assert inventory.get_partition("P").generation == 0


def test_a_reconfigurable_partition_that_is_reset_is_polled(
    poprun: Poprun, inventory: EmbeddedInventory
) -> None:
    inventory.create_partition(PartitionRequest(name="R", size=8, reconfigurable=True))

    assert log(poprun, *job(4, 8), "--reset-partition=yes")[1:5] == [
        "D Status for partition R: OK (error 0)",
        "I Partition R already exists and is in state: PS_ACTIVE",
        "D Done polling, final state of R: PS_ACTIVE",
        "D The reconfigurable partition R is OK",
    ]


def test_a_partition_that_is_updated_is_polled_once(
    poprun: Poprun, inventory: EmbeddedInventory
) -> None:
    inventory.create_partition(PartitionRequest(name="P", size=4))

    said = log(poprun, *job(4, 8), "--vipu-partition=P", "--update-partition=yes")

    assert said[:5] == [
        "D Status for partition P: OK (error 0)",
        "I Partition P already exists and is in state: PS_ACTIVE",
        "I Partition P was updated: size 4 to 8, GCDs 1 to 4, IPUs per GCD 4 to 2, "
        "replicas 1 to 8",
        "D Done polling, final state of P: PS_ACTIVE",
        "D Target options from environment: {}",
    ]
    assert [p.name for p in inventory.list_partitions()] == ["P"]


@pytest.mark.parametrize("remove", ["yes", "no"])
def test_a_partition_that_is_made_for_a_job(
    poprun: Poprun, inventory: EmbeddedInventory, remove: str
) -> None:
    words = (*job(2, 4, 2), "--vipu-partition=P", f"--remove-partition={remove}")
    given = options(8, "default", "mesh", 4)

    assert log(poprun, *words) == [
        "D Done polling, final state of P: PS_ACTIVE",
        "D Target options from environment: {}",
        f"D Target options from V-IPU partition: {given}",
        f"D Using target options: {given}",
        *NETWORK,
    ]
    left = [p.name for p in inventory.list_partitions()]
    assert left == ([] if remove == "yes" else ["P"])


def test_the_target_options_of_the_environment_come_first(
    poprun: Poprun, inventory: EmbeddedInventory
) -> None:
    inventory.create_partition(
        PartitionRequest(name="p64", size=64, reconfigurable=True)
    )
    mine = '{"ipuLinkTopology":"torus","syncConfiguration":"ipuAndAll"}'
    poprun.environ["POPLAR_TARGET_OPTIONS"] = mine

    said = log(poprun, *job(2, 2))

    assert said[4] == f"D Target options from environment: {mine}"
    [using] = [line for line in said if line.startswith("D Using target options")]
    assert '"ipuLinkTopology":"torus"' in using
    assert '"syncConfiguration":"ipuAndAll"' in using
    assert '"ipuLinkConfiguration":"slidingWindow"' in using


def test_two_racks_are_one_partition_with_two_link_domains(
    poprun: Poprun, inventory: EmbeddedInventory
) -> None:
    inventory.create_cluster(ClusterRequest(name="c128", num_machines=32, num_ilds=2))
    given = options(64, "slidingWindow", "torus", 64)

    said = log(poprun, *job(2, 16, 8), "--vipu-partition=P", "--num-ilds=2")

    assert said[2:4] == [
        f"D Target options from V-IPU partition: {given}",
        f"D Using target options: {given}",
    ]


def test_each_attempt_at_a_partition_that_is_not_active_is_one_line(
    poprun: Poprun, inventory: EmbeddedInventory
) -> None:
    inventory.create_partition(PartitionRequest(name="P", size=4, num_replicas=4))
    inventory.set_agent_status("ag0", AgentStatus.DOWN)

    ran = poprun(
        *("-vv", *LOCAL, *job(1, 4), "--vipu-partition=P"),
        *("--vipu-partition-attempts=2", "true"),
    )

    assert ran.code == 125
    said = [f"{m[1]} {m[2]}" for m in map(LINE.match, ran.stderr.splitlines()) if m]
    assert [line.partition(": Partition")[0] for line in said] == [
        "D Status for partition P: OK (error 0)",
        "I Partition P already exists and is in state: PS_ACTIVE",
        "D Done polling, final state of P: PS_ERROR",
        "I Attempt 1 of 2 failed",
        "D Done polling, final state of P: PS_ERROR",
    ]


@pytest.mark.mpi
def test_mpiruns_command_on_a_reconfigurable_partition_of_a_server(
    poprun: Poprun, server: Server, openmpi5: str
) -> None:
    port = str(server.port)
    server.inventory(admin=True).create_partition(
        PartitionRequest(name="p64", size=64, reconfigurable=True)
    )

    ran = poprun(
        *("-v", "--mpirun", openmpi5, *job(4, 16, 4), "--vipu-server-timeout=120"),
        *("--vipu-server-host=127.0.0.1", f"--vipu-server-port={port}"),
        "--mpi-global-args=--tag-output --allow-run-as-root",
        *("--executable-cache-path=/c", "true"),
        environ={"LD_LIBRARY_PATH": "/l", "PYTHONPATH": "/p"},
    )

    assert ran.code == 0, ran.stderr
    [command] = re.findall("Running command: (.*)", ran.stderr)
    first, *contexts = command.split(" ':' ")
    executable, _, first = first.partition(" '-np'")
    assert executable == (
        f"{openmpi5} '--bind-to' 'none' '--tag-output' '--allow-run-as-root'"
    )
    for rank, context in enumerate([f"'-np'{first}", *contexts]):
        assert context.startswith(
            "'-np' '1' '-x' 'POPDIST_NUM_TOTAL_REPLICAS=16' "
            "'-x' 'POPDIST_NUM_IPUS_PER_REPLICA=4' "
            "'-x' 'POPDIST_NUM_LOCAL_REPLICAS=4' "
            "'-x' 'POPDIST_UNIFORM_REPLICAS_PER_INSTANCE=1' "
            "'-x' 'POPDIST_NODE_DEVICE_ID=126' "
            "'-x' 'POPDIST_EXECUTABLE_CACHE_PATH=/c' "
            f"'-x' 'POPDIST_REPLICA_INDEX_OFFSET={4 * rank}' "
            f"'-x' 'POPDIST_LOCAL_INSTANCE_INDEX={rank}' "
            "'-x' 'IPUOF_VIPU_API_HOST=127.0.0.1' "
            f"'-x' 'IPUOF_VIPU_API_PORT={port}' "
            "'-x' 'IPUOF_VIPU_API_PARTITION_ID=p64' "
            "'-x' 'IPUOF_VIPU_API_TIMEOUT=120' "
            "'-x' 'IPUOF_LOG_LEVEL=WARN' "
            "'-x' 'PATH' '-x' 'LD_LIBRARY_PATH' '-x' 'PYTHONPATH' "
            "'-x' 'POPLAR_TARGET_OPTIONS="
            + options(64, "slidingWindow", "torus", 16)
            + "' "
        )
