"""The costs of V-IPU's inventory: a launch's cycle, and allocation in a large cluster.

    make bench-vipu

Each line has the median and the 99th percentile in milliseconds, and the limit that
the median should keep.
"""

import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import psutil

from poprun.vipu import liveness
from poprun.vipu.inventory.embedded import EmbeddedInventory
from poprun.vipu.leases import Acquisition, Holder
from poprun.vipu.model import PartitionRequest
from poprun.vipu.rules import presets
from poprun.vipu.rules.partition_rules import request_for_job

CYCLES = 200
PARTITIONS = 1000
# Fewer than a POD64 has IPUs, and more: then most requests are refused.
# Each with how many cycles of acquire, attach, release in a second are wanted at least.
CLIENTS = {50: 250, 200: 200}
# How long a client waits after a refusal.
PAUSE_S = 0.02
# They share these, so that they leave a core to the server.
PROCESSES = 5
SERVED_S = 5.0
# The steps of a launch until it has an inventory, after poprun's own imports.
FIRST_USE = """
import sys, time, poprun.run
from pathlib import Path
began = time.perf_counter()
from poprun.vipu import liveness
from poprun.vipu.rules import existing, routing
from poprun.vipu.opening import open_inventory
inventory = open_inventory(None, {"POPRUN_VIPU_INVENTORY": sys.argv[1]})
inventory.ensure_cluster(8)
inventory.list_partitions()
inventory.close()
print(time.perf_counter() - began)
"""

LIST = (
    "import sys; from poprun.vipu.commands.entry_points import vipu; sys.exit(vipu())"
)

# Threads of one process, each with a separate connection. Prints cycles per second.
CLIENT = """
import os, sys, threading, time
from poprun.vipu import liveness
from poprun.vipu.client.server_inventory import ServerInventory
from poprun.vipu.leases import Holder
from poprun.vipu.leases import Acquisition
from poprun.vipu.model import PartitionRequest
from poprun.vipu.client.server_address import ServerAddress
from poprun.vipu.errors import NoSpaceError

address = ServerAddress("127.0.0.1", int(sys.argv[1]))
own_process = liveness.identify()
counts = []


def work(number):
    name = f"P{os.getpid()}-{number}"
    acquisition = Acquisition(
        holder=Holder(user="alice", job=name, host="h1", process=own_process),
        partition=name,
        num_children=1,
        ipus_per_child=1,
        create=PartitionRequest(name=name, size=1),
    )
    inventory = ServerInventory(address, timeout_s=30)
    count = 0
    while time.monotonic() < end:
        try:
            lease = inventory.acquire(acquisition).lease.id
        except NoSpaceError:
            time.sleep(float(sys.argv[4]))
            continue
        inventory.attach(lease, 0, own_process)
        inventory.release(lease)
        count += 1
    counts.append(count)


print("ready", flush=True)
sys.stdin.readline()
end = time.monotonic() + float(sys.argv[3])
threads = [threading.Thread(target=work, args=(n,)) for n in range(int(sys.argv[2]))]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(sum(counts) / float(sys.argv[3]))
"""


def main() -> None:
    print(f"{'':44} {'median':>8} {'99 %':>8} {'limit':>8}   ms")
    with tempfile.TemporaryDirectory() as directory:
        small, large = Path(directory) / "small.db", Path(directory) / "large.db"
        report("import and open, in a process of its own", first_uses(small), 30)
        with closing(EmbeddedInventory(small, host="h1")) as inventory:
            report("acquire, attach 4 instances, release", cycles(inventory), 0.7)
        with closing(EmbeddedInventory(large, host="h1")) as inventory:
            fill(inventory)
            name = f"allocate in 65536 IPUs, {PARTITIONS} partitions"
            report(name, allocations(inventory), 5)
            report("list them as JSON", json_lists(large), 2000)
        for clients, wanted in CLIENTS.items():
            path = Path(directory) / f"server-{clients}.db"
            rate, of_cpu = served_cycles(path, clients)
            print(
                f"{clients} clients of a server with 64 IPUs: {rate:.0f} cycles/s, at "
                f"least {wanted} wanted; {of_cpu:.0f} in each second of its CPU time"
            )


def report(name: str, seconds: Sequence[float], limit: float) -> None:
    ordered = sorted(seconds)
    median = 1e3 * statistics.median(ordered)
    worst = 1e3 * ordered[len(ordered) * 99 // 100]
    print(f"{name:44} {median:8.2f} {worst:8.2f} {limit:8.1f}")


def first_uses(path: Path) -> list[float]:
    command = [sys.executable, "-c", FIRST_USE, str(path)]
    return [
        float(subprocess.check_output(command, env=environ()))
        for _ in range(CYCLES // 10)
    ]


def environ() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}


def cycles(inventory: EmbeddedInventory) -> list[float]:
    own_process = liveness.identify()
    request = request_for_job(
        "P", num_replicas=8, ipus_per_replica=1, num_instances=4, strict=False
    )
    acquisition = Acquisition(
        holder=Holder(user="alice", job="j", host="h1", process=own_process),
        partition="P",
        num_children=4,
        ipus_per_child=2,
        create=request,
    )

    def cycle() -> None:
        lease = inventory.acquire(acquisition).lease.id
        for instance in range(4):
            inventory.attach(lease, instance, own_process)
        inventory.release(lease)

    return [timed(cycle) for _ in range(CYCLES)]


def json_lists(path: Path) -> list[float]:
    def show() -> None:
        subprocess.run(
            [sys.executable, "-c", LIST, "--json", "list", "partitions"],
            env=environ() | {"POPRUN_VIPU_INVENTORY": str(path)},
            stdout=subprocess.DEVNULL,
            check=True,
        )

    return [timed(show) for _ in range(3)]


def served_cycles(path: Path, num_clients: int) -> tuple[float, float]:
    """Return how many cycles of acquire, attach, release a server does in a second.

    The second figure is for a second of CPU time, which other processes change less.
    """
    server = subprocess.Popen(
        [
            *(sys.executable, "-m", "poprun.vipu.server.serve"),
            *("--port=0", f"--database={path}"),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        port = server.stdout.readline().split("127.0.0.1:")[1].split()[0]
        command = [
            sys.executable,
            "-c",
            CLIENT,
            port,
            str(num_clients // PROCESSES),
            str(SERVED_S),
            str(PAUSE_S),
        ]
        clients = [
            subprocess.Popen(command, stdin=-1, stdout=-1, text=True, env=environ())
            for _ in range(PROCESSES)
        ]
        for client in clients:  # they have imported what they need
            assert client.stdout is not None
            client.stdout.readline()
        began = cpu_time(server.pid)
        for client in clients:
            assert client.stdin is not None
            client.stdin.write("go\n")
            client.stdin.flush()
        rate = sum(float(client.communicate()[0]) for client in clients)
        return rate, rate * SERVED_S / (cpu_time(server.pid) - began)
    finally:
        server.terminate()
        server.wait()


def cpu_time(pid: int) -> float:
    used = psutil.Process(pid).cpu_times()
    return float(used.user + used.system)


def fill(inventory: EmbeddedInventory) -> None:
    """Make partitions of all sizes in random order, and remove every second one."""
    chance = random.Random(1)
    inventory.create_cluster(presets.preset("pod65536"))
    names = [f"P{number}" for number in range(2 * PARTITIONS)]
    for name in names:
        size = 2 ** chance.choice((0, 1, 2, 3, 4, 5))
        inventory.create_partition(PartitionRequest(name=name, size=size))
    chance.shuffle(names)
    for name in names[:PARTITIONS]:
        inventory.remove_partition(name)


def allocations(inventory: EmbeddedInventory) -> list[float]:
    chance = random.Random(2)
    seconds = []
    for number in range(CYCLES):
        request = PartitionRequest(
            name=f"Q{number}", size=2 ** chance.randrange(11), num_gcds=1
        )
        seconds.append(timed(partial(inventory.create_partition, request)))
        inventory.remove_partition(request.name)
    return seconds


def timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
