"""Command lines of the guide and of public examples, on the partitions they ask for.

Each is started as it stands, except that --host names this machine, that the server's
address is that of the test's, and that a small program has the name of theirs.
"""

import json
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from conftest import BIN, Poprun
from vipu_servers import Server, serving

from poprun.vipu.inventory.embedded import EmbeddedInventory
from poprun.vipu.model import ClusterRequest
from poprun.vipu.rules import presets

# Writes what it is given; the first instance asks what its partition is.
PROGRAM = """
import json, os, subprocess, sys
import popdist
given = {
    "device": popdist.getDeviceId(),
    "gcd": os.environ.get("IPUOF_VIPU_API_GCD_ID"),
    "parent": os.environ.get("POPDIST_NODE_DEVICE_ID"),
    "timeout": os.environ["IPUOF_VIPU_API_TIMEOUT"],
    "server": os.environ.get("IPUOF_VIPU_API_PORT"),
    "cache": os.environ.get("POPDIST_EXECUTABLE_CACHE_PATH"),
    "options": json.loads(os.environ["POPLAR_TARGET_OPTIONS"]),
    "argv": sys.argv[1:],
}
index = popdist.getInstanceIndex()
if index == 0:
    name = os.environ["IPUOF_VIPU_API_PARTITION_ID"]
    words = ["vipu", "get", "partition", name, "--json"]
    given["partition"] = json.loads(subprocess.check_output(words))["partition"]
with open(f"given-{index}", "w") as file:
    json.dump(given, file)
"""
PROGRAMS = ("bert.py", "main.py", "model.py", "popdist_training.py", "run.py")
PROGRAMS += ("run_pretraining.py", "test.py", "train.py")
LOCAL = ("--mpirun", "local")
SERVER = "--vipu-server-host=127.0.0.1 --vipu-server-port={port}"
NETWORK = (
    '--mpi-global-args="--tag-output --allow-run-as-root '
    '--mca oob_tcp_if_include 10.10.0.0/16 --mca btl_tcp_if_include 10.10.0.0/16"'
)


class Case(NamedTuple):
    """A command line, and what its job must get."""

    line: str
    # The id of the device of each instance.
    devices: list[int]
    # What vipu says of the partition; what stands in it only is compared.
    spec: dict[str, Any]
    name: str = ""
    timeout: str = "10"
    # What there was before, in the words of `vipu create partition`.
    before: str = ""
    # What the job leaves.
    after: tuple[str, ...] = ()
    # How often the partition was updated or reset.
    generation: int = 0
    parent: str | None = None
    options: dict[str, str] = {}  # noqa: RUF012  # never changed


def pod(size: int, gcds: int, replicas: int, ilds: int = 1, **more: Any) -> Any:
    spec = {"size": size, "num_gcds": gcds, "num_replicas": replicas, "num_ilds": ilds}
    return {**spec, "reconfigurable": False, **more}


EMBEDDED = {
    "four pairs": Case(
        "poprun --num-replicas 8 --num-instances 4 --ipus-per-replica 2 "
        "python main.py --batch-size 64",
        [24, 25, 26, 27],
        pod(16, 4, 8),
    ),
    "tags": Case(
        "poprun --mpi-global-args --tag-output --num-replicas 4 --num-instances 2 "
        "python3 popdist_training.py",
        [4, 5],
        pod(4, 2, 4),
    ),
    "cache": Case(
        "poprun -vv --num-instances=1 --num-replicas=4 --executable-cache-path=c "
        "python3 train.py --config resnet50-pod4",
        [6],
        pod(4, 1, 4),
    ),
    "a whole rack": Case(
        "poprun --allow-run-as-root 1 --vv --num-instances 1 --num-replicas 16 "
        '--mpi-global-args="--tag-output" --ipus-per-replica 4 '
        "python3 run_pretraining.py",
        [126],
        pod(64, 1, 16, routing="RINGSWNC"),
        options={
            "ipuLinkDomainSize": "64",
            "ipuLinkConfiguration": "slidingWindow",
            "ipuLinkTopology": "torus",
            "gatewayMode": "true",
            "instanceSize": "64",
        },
    ),
    "update": Case(
        "poprun --vipu-partition popxl_test --update-partition yes --num-replicas 2 "
        "--num-instances 2 --print-topology yes python model.py",
        [0, 1],
        pod(2, 2, 2),
        before="popxl_test --size 8",
        after=("popxl_test",),
        generation=2,
    ),
    "update of nothing": Case(
        "poprun --vipu-partition popxl_test --update-partition yes --num-replicas 2 "
        "--num-instances 2 --print-topology yes python model.py",
        [0, 1],
        pod(2, 2, 2),
        name="popxl_test",
    ),
    "placement": Case(
        "poprun --num-replicas 4 --num-instances 2 --ipus-per-replica 1 "
        "--process-placement=disabled --mpi-global-args=--tag-output "
        "--mpi-global-args=--allow-run-as-root python test.py",
        [4, 5],
        pod(4, 2, 4),
    ),
}
SERVED = {
    "guide, single instance": Case(
        f"poprun --numa-aware=yes {SERVER} --vipu-partition=P8 --vipu-cluster=A8 "
        '--mpi-global-args="--tag-output" --num-replicas=4 --num-instances=1 '
        "python3 train.py",
        [6],
        pod(4, 1, 4, cluster="A8"),
        name="P8",
    ),
    "guide, single host": Case(
        f"poprun --numa-aware=yes {SERVER} --vipu-partition=A8 --vipu-cluster=A8 "
        '--mpi-global-args="--tag-output" --num-replicas=8 --num-instances=2 '
        "python3 train.py",
        [12, 13],
        pod(8, 2, 8, cluster="A8"),
        name="A8",
    ),
    "guide, hosts": Case(
        f"poprun --host localhost --numa-aware=yes {SERVER} --vipu-partition=P8 "
        '--vipu-cluster=A8 --num-ilds=1 --mpi-global-args="--tag-output" '
        '--mpi-local-args="-x PYTHONPATH" --num-replicas=8 --num-instances=2 '
        "python3 train.py",
        [12, 13],
        pod(8, 2, 8, cluster="A8"),
        name="P8",
    ),
    "guide, two IPU-PODs": Case(
        f"poprun --host localhost --numa-aware=yes {SERVER} --vipu-partition=P8 "
        '--vipu-cluster=P8 --num-ilds=2 --mpi-global-args="--tag-output" '
        '--mpi-local-args="-x PYTHONPATH" --num-replicas=8 --num-instances=2 '
        "python3 train.py",
        [12, 13],
        pod(8, 2, 8, ilds=2, cluster="P8"),
        name="P8",
        options={"ipuLinkDomainSize": "4", "instanceSize": "4"},
    ),
    "guide, PyTorch": Case(
        f"poprun --vipu-partition=MyPartition {SERVER} --num-replicas=4 "
        "--num-instances=1 --numa-aware=yes -v python main.py",
        [6],
        pod(4, 1, 4),
        name="MyPartition",
    ),
    "a partition that stays": Case(
        "poprun -vv --remove-partition=0 --num-instances 2 --num-replicas 16 "
        "--num-ilds=2 --ipus-per-replica 8 --numa-aware=yes --host localhost "
        f"{SERVER} --vipu-server-timeout=600 --vipu-partition=P --vipu-cluster=P8 "
        f"--reset-partition=yes --update-partition=yes {NETWORK} "
        '--mpi-local-args="-x LD_LIBRARY_PATH -x OPAL_PREFIX -x PATH" python3 bert.py',
        [252, 253],
        pod(128, 2, 16, ilds=2, cluster="P8"),
        name="P",
        timeout="600",
        after=("P",),
    ),
    "a partition that is updated and reset": Case(
        "poprun -vv --remove-partition=0 --num-instances 2 --num-replicas 16 "
        "--num-ilds=2 --ipus-per-replica 8 --numa-aware=yes --host localhost "
        f"{SERVER} --vipu-server-timeout=600 --vipu-partition=P --vipu-cluster=P8 "
        f"--reset-partition=yes --update-partition=yes {NETWORK} "
        '--mpi-local-args="-x LD_LIBRARY_PATH -x OPAL_PREFIX -x PATH" python3 bert.py',
        [252, 253],
        pod(128, 2, 16, ilds=2, cluster="P8"),
        name="P",
        timeout="600",
        before="P --size 16 --cluster P8",
        after=("P",),
        generation=2,
    ),
    "an allocation": Case(
        f"poprun -vv --num-instances=8 --num-replicas=64 {SERVER} --vipu-partition=Q "
        "--vipu-allocation=A --update-partition=yes --remove-partition=yes "
        "--reset-partition=no --sync-type=ST_POD_NATIVE_DEFAULT "
        "--executable-cache-path=c python3 train.py",
        [112, 113, 114, 115, 116, 117, 118, 119],
        pod(64, 8, 64, allocation="A", sync_type="ST_POD_NATIVE_DEFAULT"),
        name="Q",
    ),
    "a cluster": Case(
        "poprun -vv --num-instances 1 --num-replicas 1 --ipus-per-replica 8 "
        f"--vipu-partition Q --vipu-cluster A8 {SERVER} "
        "--executable-cache-path ./exps/exe_cache python run.py",
        [14],
        pod(8, 1, 1, cluster="A8"),
        name="Q",
    ),
    "a timeout": Case(
        "poprun --vv --num-instances 1 --num-replicas 16 --update-partition=yes "
        "--remove-partition=yes --reset-partition=no "
        "--sync-type=ST_POD_NATIVE_DEFAULT --vipu-server-timeout 300 "
        f"{SERVER} --vipu-partition=Q --vipu-cluster=c64 --ipus-per-replica 4 "
        f"{NETWORK} "
        '--mpi-local-args="-x OPAL_PREFIX -x PATH -x IPUOF_VIPU_API_TIMEOUT=600" '
        "python3 bert.py --config configs/pretrain_large_128.json",
        [126],
        pod(64, 1, 16, cluster="c64"),
        name="Q",
        # The program's own, as mpirun's -x has the last word.
        timeout="600",
    ),
    "a partition that is there": Case(
        "poprun -vv --num-instances=16 --num-replicas=16 --ipus-per-replica=4 "
        f"--host=localhost {SERVER} --num-ilds=1 --vipu-partition=S --numa-aware=yes "
        "--update-partition=yes --remove-partition=no --reset-partition=no "
        "--print-topology=yes --executable-cache-path cache/rn50_pod64 "
        f"{NETWORK} python3 train.py",
        list(range(96, 112)),
        pod(64, 16, 16, allocation="A"),
        before="S --size 64 --num-gcds 16 --total-num-replicas 16 --allocation A",
        after=("S",),
    ),
    "a reconfigurable partition": Case(
        f"poprun -vv --num-instances=4 --num-replicas=16 --ipus-per-replica=4 {SERVER} "
        "--vipu-partition=R --reset-partition=yes python3 train.py",
        [120, 121, 122, 123],
        {"size": 64, "reconfigurable": True, "sync_type": "ST_C2_COMPATIBLE"},
        before="R --size 64 --reconfigurable --allocation A",
        after=("R",),
        generation=1,
        parent="126",
        options={"ipuLinkTopology": "torus", "instanceSize": "16"},
    ),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the clusters and the allocation that the lines name."""
    database = tmp_path_factory.mktemp("server") / "inventory.db"
    inventory = EmbeddedInventory(database, host="h1")
    inventory.create_cluster(presets.preset("pod64", "cA"))
    agents = [agent.name for agent in inventory.list_agents()]
    inventory.create_allocation("A", "cA", agents)
    inventory.create_cluster(presets.preset("pod64", "c64"))
    inventory.create_cluster(ClusterRequest(name="A8", num_machines=2))
    inventory.create_cluster(presets.preset("pod128", "P8"))
    inventory.close()
    with serving(database) as started:
        yield started


def given(poprun: Poprun) -> list[dict[str, Any]]:
    """Return what each instance got."""
    files = sorted(poprun.directory.glob("given-*"), key=lambda p: int(p.name[6:]))
    return [json.loads(file.read_text()) for file in files]


def check(poprun: Poprun, case: Case, **environ: str) -> list[dict[str, Any]]:
    """Run a command line, and compare what its instances got."""
    for name in PROGRAMS:
        poprun.script(name, PROGRAM)
    command, *words = shlex.split(case.line)
    assert command == "poprun"

    ran = poprun(*LOCAL, *words, environ=environ)

    assert ran.code == 0, ran.stderr
    warnings = [line for line in ran.stderr.splitlines() if "warning" in line]
    assert all("no effect on poprun's own launcher" in line for line in warnings)
    instances = given(poprun)
    assert [one["device"] for one in instances] == case.devices
    for rank, one in enumerate(instances):
        assert one["parent"] == case.parent
        assert one["gcd"] == (None if case.parent else str(rank))
        assert one["timeout"] == case.timeout
        assert one["options"].items() >= case.options.items()
        assert one["argv"] == words[len(words) - len(one["argv"]) :]
    found = instances[0]["partition"]
    assert found["spec"].items() >= case.spec.items()
    assert found["state"] == "PS_ACTIVE"
    if case.name:
        assert found["id"] == case.name
    assert found["removed_with_job"] is (not case.after)
    return instances


def create_before(case: Case, *server: str) -> None:
    if case.before:
        words = (str(BIN / "vipu"), *server, "create", "partition")
        subprocess.run([*words, *case.before.split()], check=True)


@pytest.mark.parametrize("case", EMBEDDED.values(), ids=list(EMBEDDED))
def test_a_line_without_a_server_gets_ipus_of_this_user(
    poprun: Poprun, vipu_inventory: Path, case: Case
) -> None:
    inventory = EmbeddedInventory(vipu_inventory, host="h1")
    inventory.ensure_cluster(64)
    create_before(case)

    instances = check(poprun, case)

    assert {one["server"] for one in instances} == {None}
    left = inventory.list_partitions()
    assert tuple(p.name for p in left) == case.after
    assert sum(p.generation for p in left) == case.generation
    assert inventory.list_leases() == ()
    inventory.close()


@pytest.mark.parametrize("case", SERVED.values(), ids=list(SERVED))
def test_a_line_with_a_server_gets_ipus_of_that(
    poprun: Poprun, server: Server, vipu_inventory: Path, case: Case
) -> None:
    port = str(server.port)
    create_before(case, "--api-host=127.0.0.1", f"--api-port={port}")
    line = case.line.replace("{port}", port)

    instances = check(poprun, case._replace(line=line))

    assert {one["server"] for one in instances} == {port}
    inventory = server.inventory(admin=True)
    left = inventory.list_partitions()
    for partition in left:
        inventory.remove_partition(partition.name)
    assert tuple(p.name for p in left) == case.after
    assert sum(p.generation for p in left) == case.generation
    assert inventory.list_leases() == ()
    assert not vipu_inventory.exists()


def test_the_lines_of_offline_mode_touch_no_inventory(
    poprun: Poprun, vipu_inventory: Path
) -> None:
    poprun.script("test.py", "import popdist; print(popdist.getNumTotalReplicas())")
    hello = 'poprun --num-instances 2 --num-replicas 2 --offline-mode=1 echo "Hello!"'
    test = (
        "poprun --offline-mode=on --num-instances 4 --num-replicas 4 "
        "--mpi-global-args=--allow-run-as-root python3 test.py --tmpdir /tmp/x"
    )

    outputs = [poprun(*LOCAL, *shlex.split(line)[1:]).stdout for line in (hello, test)]

    assert outputs == ["Hello!\n" * 2, "4\n" * 4]
    assert not vipu_inventory.exists()
