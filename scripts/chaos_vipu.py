"""Kill parts of jobs that hold emulated IPUs, and see that no IPU is lost or shared.

    python scripts/chaos_vipu.py --rounds 150

Each round starts several jobs, each on one vipu-server or on an embedded inventory, and
kills with SIGKILL, at random moments and several at once, the server (it is started
again), poprun, its guard, mpirun, shims and instances. It also stops and continues them
(SIGSTOP). Each instance locks a file for each IPU that it is attached to, as long as it
lives: a lock that is taken already is a double allocation. After a round all processes
of the jobs, all leases and all partitions that were made for a job must be gone. A
round that fails is described in full; --seed and --first repeat what it did, though not
the moments.
"""

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil

from poprun.helpers.own_process import default_signals
from poprun.vipu.client.server_address import ServerAddress
from poprun.vipu.client.server_inventory import ServerInventory
from poprun.vipu.errors import VipuError
from poprun.vipu.inventory.embedded import EmbeddedInventory
from poprun.vipu.inventory.interface import Inventory
from poprun.vipu.requests import PartitionRequest
from poprun.vipu.rules import numbering, presets

BIN = Path(sys.executable).parent
# A job that is asked to end must end within this time, and all it held be free.
ENDS_S = 40.0
FREE_S = 20.0
KEPT = "kept"
# Which partitions jobs name, and which parts of a job are killed.
PARTITIONS = (KEPT, KEPT, "shared", "other", None)
VICTIMS = ("poprun", "poprun", "guard", "mpirun", "shim", "instance", "server")
# How often parts are stopped for a while instead of killed.
PAUSES = 0.4

# An instance locks a file for each IPU of its device, named by its position.
PROGRAM = """
import fcntl, os, sys, time
import popdist
from poprun.vipu.client.server_address import find_server
from poprun.vipu.opening import open_inventory
from poprun.vipu.rules import numbering
from poprun.vipu.errors import InventoryError

device = popdist.getDeviceId()
where, inventory, seconds, _ = sys.argv[1:]

def partition():
    server = find_server(os.environ)
    opened = open_inventory(server, os.environ, os.uname().nodename, 5)
    return opened.get_partition(os.environ["IPUOF_VIPU_API_PARTITION_ID"])

for attempt in range(20):
    try:
        own = partition()
        break
    except InventoryError:  # the server is being started again
        time.sleep(0.2)
sizes = (2**n for n in range(own.size.bit_length()))
devices = [
    numbering.make_device(own.size, first, size)
    for size in sizes
    for first in range(0, own.size, size)
]
files = []
for index in next(d.ipus for d in devices if d.id == device):
    ipu = f"{inventory}-{own.cluster}-{numbering.positions(own)[index]}"
    files.append(open(f"{where}/{ipu}", "w"))
    try:
        fcntl.flock(files[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        open(f"{where}/double-{ipu}", "w").close()
    open(f"{where}/once-{os.getpid()}-{ipu}", "w").close()
time.sleep(float(seconds))
"""


class Server:
    """A vipu-server that is started again at its port after it was killed."""

    def __init__(self, directory: Path) -> None:
        self.database = directory / "server.db"
        self.log = open(directory / "server.log", "ab")  # noqa: SIM115
        self.port = 0
        self.start()

    def start(self) -> None:
        self.process = psutil.Popen(
            [
                str(BIN / "vipu-server"),
                f"--port={self.port}",
                f"--database={self.database}",
                "--pod=pod16",
            ],
            stdout=subprocess.PIPE,
            stderr=self.log,
        )
        line = self.process.stdout.readline().decode()
        found = re.search(r":(\d+) ", line)
        if not found:
            raise SystemExit(f"vipu-server did not start: {line!r}")
        self.port = int(found[1])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


class Round:
    """Some jobs at once, and what is done to them."""

    def __init__(self, number: int, seed: int, place: "Place") -> None:
        self.dice = random.Random(f"{seed}/{number}")
        self.place = place
        self.word = f"98765.{self.dice.randrange(10**12)}"
        self.story = [f"round {number}"]
        self.log = os.memfd_create("log")
        self.jobs: list[psutil.Popen] = []

    def run(self) -> list[str]:
        """Do it all; return what is wrong."""
        for _ in range(self.dice.randint(2, 4)):
            self.jobs.append(self._start())
            time.sleep(self.dice.uniform(0, 0.3))
        # Mostly when instances run, now and then while poprun reserves IPUs.
        limit = time.monotonic() + self.dice.choice((0, 3, 3))
        while time.monotonic() < limit and not any(self.place.locks.iterdir()):
            time.sleep(0.02)
        for _ in range(self.dice.randint(1, 4)):
            time.sleep(self.dice.uniform(0, 0.6))
            if self.dice.random() < PAUSES:
                self._pause()
            else:
                self._strike()
        time.sleep(self.dice.uniform(0, 0.5))
        self._end()
        limit = time.monotonic() + ENDS_S
        for job in self.jobs:
            try:
                job.wait(max(0.1, limit - time.monotonic()))
            except psutil.TimeoutExpired:
                return [f"poprun {job.pid} was still there after {ENDS_S} s"]
        return self._left()

    def _start(self) -> psutil.Popen:
        dice = self.dice
        instances = dice.choice((1, 2, 4))
        replicas = instances * dice.choice((1, 2))
        partition = dice.choice(PARTITIONS)
        words = [f"--num-instances={instances}", f"--num-replicas={replicas}"]
        served = dice.random() < 0.6
        if partition:
            words.append(f"--vipu-partition={partition}")
        elif served:  # several partitions are there, and a server wants a name
            words.append(f"--vipu-partition=own-{len(self.jobs)}")
        if served:
            port = self.place.server.port
            words += ["--vipu-server-host=127.0.0.1", f"--vipu-server-port={port}"]
        launcher = dice.choice(self.place.mpiruns)
        words += [f"--mpirun={launcher}", "--grace=0.3", "--vipu-server-timeout=5"]
        self.story.append(" ".join(words))
        program = [sys.executable, "-c", PROGRAM, str(self.place.locks)]
        program += ["server" if served else "embedded"]
        seconds = str(dice.choice((0, 0.2, 600)))
        return psutil.Popen(
            [POPRUN, *words, *program, seconds, self.word],
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            cwd=self.place.directory,
            env={**self.place.environ, "CHAOS": self.word},
            preexec_fn=default_signals,
        )

    def _strike(self) -> None:
        """Kill one to three parts of one to all jobs in one instant."""
        whats = [self.dice.choice(VICTIMS) for _ in range(self.dice.randint(1, 3))]
        job = self.dice.choice(self.jobs)
        victims = [p for what in whats for p in self._find(job, what, "SIGKILL")]
        for victim in victims:
            try:
                victim.kill()
            except psutil.NoSuchProcess:
                self.story.append("which has ended already")
        if "server" in whats:
            self.story.append("SIGKILL to the server")
            self.place.server.kill()
            time.sleep(self.dice.choice((0, 0.5, 2)))
            self.place.server.start()

    def _pause(self) -> None:
        """Stop one to three parts of jobs for a while; kill some in the meantime."""
        whats = [self.dice.choice(VICTIMS) for _ in range(self.dice.randint(1, 3))]
        stopped = [p for what in whats for p in self._find_anywhere(what, "SIGSTOP")]
        for process in stopped:
            with suppress(psutil.NoSuchProcess):
                process.suspend()
        time.sleep(self.dice.choice((0.1, 1, 3)))
        if self.dice.random() < 0.5:
            self._strike()
        for process in stopped:
            with suppress(psutil.NoSuchProcess):
                process.resume()
        self.story.append("SIGCONT")

    def _find_anywhere(self, what: str, number: str) -> list[psutil.Process]:
        if what == "server":
            self.story.append(f"{number} to the server")
            return [self.place.server.process]
        return self._find(self.dice.choice(self.jobs), what, number)

    def _find(self, job: psutil.Popen, what: str, number: str) -> list[psutil.Process]:
        if what == "server":
            return []
        try:
            below = job.children(recursive=True)
            words = {process: process.cmdline() for process in below}
        except psutil.Error:
            return []
        found = {
            "poprun": [job],
            "guard": [p for p, argv in words.items() if argv[4:5] == ["guard"]],
            "mpirun": [p for p in below if p.name() in ("mpirun", "mpiexec.hydra")],
            "shim": [p for p, argv in words.items() if argv[4:5] == ["shim"]],
            "instance": [p for p, argv in words.items() if argv[-1:] == [self.word]],
        }[what]
        self.story.append(f"{number} to {what} of job {self.jobs.index(job)}")
        return found if what != "shim" else found[:1]

    def _end(self) -> None:
        for job in self.jobs:
            number = self.dice.choice([signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
            if job.poll() is None:
                self.story.append(f"{number.name} to poprun {self.jobs.index(job)}")
                job.send_signal(number)

    def _left(self) -> list[str]:
        limit = time.monotonic() + FREE_S
        while (left := self._wrong()) and time.monotonic() < limit:
            time.sleep(0.1)
        doubles = [path.name for path in self.place.locks.glob("double-*")]
        for path in self.place.locks.iterdir():
            self.place.attached += path.name.startswith("once-")
            path.unlink()
        return left + doubles

    def _wrong(self) -> list[str]:
        left = [f"process {p.pid}" for p in psutil.process_iter() if self._owns(p)]
        for name, inventory in self.place.inventories():
            try:
                left += [f"{name}: {what}" for what in inconsistencies(inventory)]
            except VipuError as error:
                left.append(f"{name}: {error}")
        return left

    def _owns(self, process: psutil.Process) -> bool:
        try:
            marked = process.environ().get("CHAOS") == self.word
            return marked or self.word in process.cmdline()
        except psutil.Error:
            return False

    def told(self) -> str:
        said = os.pread(self.log, 1 << 20, 0).decode(errors="replace")
        return "\n  ".join(self.story) + (f"\n{said.rstrip()}" if said else "")


POPRUN = str(BIN / "poprun")


class Place:
    """What all rounds have in common: a server, and an embedded inventory."""

    def __init__(self, directory: Path, mpiruns: list[str]) -> None:
        self.directory = directory
        self.mpiruns = mpiruns
        self.locks = directory / "locks"
        self.locks.mkdir()
        # How many IPUs instances were attached to, to see that rounds do something.
        self.attached = 0
        self.embedded = directory / "embedded.db"
        self.environ = {**os.environ, "POPRUN_VIPU_INVENTORY": str(self.embedded)}
        inventory = EmbeddedInventory(self.embedded, host=os.uname().nodename)
        inventory.create_cluster(presets.preset("pod16", "c16"))
        inventory.close()
        self.server = Server(directory)
        for _, opened in self.inventories():
            opened.create_cluster(presets.preset("pod16", "for-kept"))
            opened.create_partition(
                PartitionRequest(KEPT, 16, reconfigurable=True, cluster="for-kept")
            )

    def inventories(self) -> list[tuple[str, Inventory]]:
        address = ServerAddress("127.0.0.1", self.server.port)
        host = os.uname().nodename
        return [
            ("server", ServerInventory(address, timeout_s=10, admin=True)),
            ("embedded", EmbeddedInventory(self.embedded, host=host)),
        ]


def inconsistencies(inventory: Inventory) -> list[str]:
    """Return what no inventory without jobs must have."""
    found = [f"lease {lease.id[:8]} is held" for lease in inventory.list_leases()]
    found += [f"{r.device} is held" for r in inventory.list_reservations()]
    partitions = inventory.list_partitions()
    found += [f"partition {p.name} is left" for p in partitions if p.name != KEPT]
    if not found:
        # All IPUs are free: those of the whole cluster are found.
        whole = PartitionRequest("whole", 16, cluster=inventory.list_clusters()[0].name)
        names = {cluster.name for cluster in inventory.list_clusters()} - {"for-kept"}
        for name in names:
            try:
                made = inventory.create_partition(whole._replace(cluster=name))
                if numbering.positions(made) != tuple(range(16)):
                    found.append(f"{made} is not the whole cluster")
                inventory.remove_partition("whole")
            except VipuError as error:
                found.append(str(error))
    inventory.close()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--first", type=int, default=0, help="The first round.")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument(
        "--mpirun", action="append", help="Repeatable. Default: mpirun and local."
    )
    asked = parser.parse_args()
    print(f"seed {asked.seed}", flush=True)
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        mpiruns = asked.mpirun or ["local", str(BIN / "mpirun")]
        # Jobs run in another directory.
        mpiruns = [m if m == "local" else os.path.abspath(m) for m in mpiruns]
        place = Place(Path(name), mpiruns)
        for number in range(asked.first, asked.first + asked.rounds):
            chaos = Round(number, asked.seed, place)
            if wrong := chaos.run():
                failed += 1
                print(f"{chaos.told()}\nWRONG: {'; '.join(wrong)}\n", flush=True)
            os.close(chaos.log)
        place.server.kill()
    print(
        f"{asked.rounds} rounds, instances were attached to {place.attached} IPUs, "
        f"{failed} rounds with something wrong."
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
