"""Many processes at once: each IPU goes to one of them, and none is lost."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from conftest import wait_for

from poprun.vipu.inventory.embedded import EmbeddedInventory
from poprun.vipu.model import Block

# Forks processes that wait for each other, then all act at once. Each writes one line
# of JSON, and lives until it is killed or stdin ends.
CONTENDERS = """
import json, os, sys
from pathlib import Path
from poprun.vipu import liveness
from poprun.vipu.inventory.embedded import EmbeddedInventory
from poprun.vipu.leases import Holder
from poprun.vipu.leases import Acquisition
from poprun.vipu.rules.partition_rules import request_for_job
from poprun.vipu.errors import VipuError

path, number, replicas, name, first_use = sys.argv[1:]
replicas = int(replicas)
start, begin = os.pipe()


def contend(rank):
    os.close(begin)
    os.read(start, 1)  # ends when the parent closes its end
    inventory = EmbeddedInventory(Path(path), host="h1", timeout_s=200)
    if first_use == "yes":
        inventory.ensure_cluster(replicas)
    job = name.format(rank)
    request = request_for_job(
        job, num_replicas=replicas, ipus_per_replica=1, num_instances=1, strict=False
    )
    me = liveness.identify()
    asked = Acquisition(
        holder=Holder(user="alice", job=f"j{rank}", host="h1", process=me),
        partition=job,
        num_children=1,
        ipus_per_child=replicas,
        create=request,
    )
    try:
        grant = inventory.acquire(asked)
        inventory.attach(grant.lease.id, 0, me)
        positions = [[block.first, block.size] for block in grant.partition.blocks]
        found = {"pid": me.pid, "blocks": positions}
    except VipuError as error:
        found = {"error": type(error).__name__, "sentence": str(error)}
    os.write(1, (json.dumps(found) + chr(10)).encode())
    sys.stdin.read()


for rank in range(int(number)):
    if os.fork() == 0:
        contend(rank)
        os._exit(0)
os.close(begin)
for _ in range(int(number)):
    os.wait()
"""


@contextmanager
def contenders(
    path: Path, number: int, replicas: int, name: str, *, first_use: bool = False
) -> Iterator[list[dict[str, Any]]]:
    """Run processes that ask for IPUs at once; they live until the block ends."""
    answer = "yes" if first_use else "no"
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            CONTENDERS,
            str(path),
            str(number),
            str(replicas),
            name,
            answer,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        yield [json.loads(process.stdout.readline()) for _ in range(number)]
        process.communicate()
        assert process.returncode == 0
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def winners(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for one in found if "pid" in one]


def test_exactly_those_that_fit_win_the_last_ipus(
    path: Path, inventory: EmbeddedInventory
) -> None:
    with contenders(path, 50, 8, "P{}") as found:
        won = winners(found)
        lost = [one for one in found if "error" in one]

        assert sorted(one["blocks"] for one in won) == [
            [[first, 8]] for first in range(0, 64, 8)
        ]
        assert {one["error"] for one in lost} == {"NoSpaceError"}
        assert len(lost) == 42
        assert all("user alice, job j" in one["sentence"] for one in lost)
        assert len(inventory.list_partitions()) == 8

    assert inventory.list_partitions() == ()
    assert inventory.list_leases() == ()


def test_one_of_many_gets_a_partition_of_one_name(
    path: Path, inventory: EmbeddedInventory
) -> None:
    with contenders(path, 20, 8, "P") as found:
        errors = [one["error"] for one in found if "error" in one]

        assert len(winners(found)) == 1
        assert errors == ["InUseError"] * 19


def test_many_that_make_the_inventory_at_once_share_it(path: Path) -> None:
    with contenders(path, 20, 4, "P{}", first_use=True) as found:
        blocks = [one["blocks"][0][0] for one in winners(found)]

        assert sorted(blocks) == list(range(0, 64, 4))
    inventory = EmbeddedInventory(path, host="h1")
    assert [cluster.name for cluster in inventory.list_clusters()] == ["pod64"]
    inventory.close()
    assert [file.name for file in path.parent.iterdir()] == ["inventory.db"]


def test_killed_processes_free_their_ipus_and_no_others(
    path: Path, inventory: EmbeddedInventory
) -> None:
    with contenders(path, 8, 8, "P{}") as first:
        pids = [one["pid"] for one in first]
        for pid in pids[:5]:
            os.kill(pid, signal.SIGKILL)
        for pid in pids[:5]:
            wait_for(lambda pid=pid: not Path(f"/proc/{pid}").exists(), "its end")
        with contenders(path, 10, 8, "Q{}") as second:
            freed = sorted(one["blocks"] for one in first[:5])

            assert sorted(one["blocks"] for one in winners(second)) == freed
            assert len(inventory.list_partitions()) == 8


# Forks processes that acquire and release without end, kills one after the other in
# whatever it does, and starts another in its place.
VICTIMS = """
import os, random, signal, sys, time
from pathlib import Path
from poprun.vipu import liveness
from poprun.vipu.inventory.embedded import EmbeddedInventory
from poprun.vipu.leases import Holder
from poprun.vipu.leases import Acquisition
from poprun.vipu.model import PartitionRequest
from poprun.vipu.errors import InUseError, NoSpaceError

path, kills = Path(sys.argv[1]), int(sys.argv[2])


def work(seed):
    chance = random.Random(seed)
    me = liveness.identify()
    inventory = EmbeddedInventory(path, host="h1", timeout_s=200)
    while True:
        size, name = 2 ** chance.randrange(6), f"P{chance.randrange(8)}"
        asked = Acquisition(
            holder=Holder(user="alice", job="j", host="h1", process=me),
            partition=name + f"-{size}",
            num_children=1,
            ipus_per_child=size,
            create=PartitionRequest(name=name + f"-{size}", size=size),
        )
        try:
            lease = inventory.acquire(asked).lease.id
        except (InUseError, NoSpaceError):
            continue
        inventory.attach(lease, 0, me)
        if chance.random() < 0.7:
            inventory.release(lease)


def start(seed):
    pid = os.fork()
    if pid == 0:
        try:
            work(seed)
        finally:
            os._exit(1)
    return pid


chance = random.Random(9)
victims = [start(seed) for seed in range(4)]
failed = 0
for seed in range(4, 4 + kills):
    time.sleep(chance.random() / 20)
    victim = victims.pop(chance.randrange(4))
    os.kill(victim, signal.SIGKILL)
    failed += os.WIFEXITED(os.waitpid(victim, 0)[1])
    victims.append(start(seed))
for victim in victims:
    os.kill(victim, signal.SIGKILL)
    failed += os.WIFEXITED(os.waitpid(victim, 0)[1])
sys.exit(failed)
"""


def test_processes_killed_in_the_middle_of_a_change_lose_no_ipu(
    path: Path, inventory: EmbeddedInventory
) -> None:
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", VICTIMS, str(path), "60"]
    ended = subprocess.run(command, env=environ)

    assert ended.returncode == 0
    assert inventory.list_partitions() == ()
    assert inventory.list_leases() == ()
    with inventory._database.transaction(write=False):
        assert inventory._db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert inventory.list_free_blocks("c64") == (Block(first=0, size=64),)
