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

import os
import re
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
from chaos_round import BIN, ChaosRound, command_line, make_parser, run_rounds

from poprun.vipu.client.server_address import ServerAddress
from poprun.vipu.client.server_inventory import ServerInventory
from poprun.vipu.errors import VipuError
from poprun.vipu.inventory.embedded import EmbeddedInventory
from poprun.vipu.inventory.interface import Inventory
from poprun.vipu.model import PartitionRequest
from poprun.vipu.rules import numbering, presets

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
    opened = open_inventory(server, os.environ, 5)
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
        match = re.search(r":(\d+) ", line)
        if not match:
            raise SystemExit(f"vipu-server did not start: {line!r}")
        self.port = int(match[1])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


class Round(ChaosRound):
    """Some jobs at once, and what is done to them."""

    def __init__(self, number: int, seed: int, place: "Place") -> None:
        super().__init__(number, seed)
        self.place = place
        self.jobs: list[psutil.Popen] = []

    def run(self) -> list[str]:
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
        for job in self.jobs:
            self.end(job)
        limit = time.monotonic() + ENDS_S
        for job in self.jobs:
            try:
                job.wait(max(0.1, limit - time.monotonic()))
            except psutil.TimeoutExpired:
                return [f"poprun {job.pid} was still there after {ENDS_S} s"]
        return self._find_wrong_at_end()

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
        program = [sys.executable, "-c", PROGRAM, str(self.place.locks)]
        program += ["server" if served else "embedded"]
        program += [str(dice.choice((0, 0.2, 600))), self.word]
        return self.start(words, program, self.place.environ)

    def _strike(self) -> None:
        """Kill one to three parts of jobs in one instant, or the server."""
        victims = self._choose_victims("SIGKILL")
        for victim in victims:
            self.kill(victim)
        if self.place.server.process in victims:
            self.place.server.kill()
            time.sleep(self.dice.choice((0, 0.5, 2)))
            self.place.server.start()

    def _pause(self) -> None:
        """Stop one to three parts of jobs for a while; kill some in the meantime."""
        stopped = self._choose_victims("SIGSTOP")
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

    def _choose_victims(self, signal_name: str) -> list[psutil.Process]:
        victims = []
        for _ in range(self.dice.randint(1, 3)):
            part, index = self.dice.choice(VICTIMS), self.dice.randrange(len(self.jobs))
            self.story.append(f"{signal_name} to {part}, of job {index}")
            victims += self._find(part, self.jobs[index])
        return victims

    def _find(self, part: str, job: psutil.Popen) -> list[psutil.Process]:
        """Return the processes of a part of a job; of the shims only one."""
        if part in ("poprun", "server"):
            return [job if part == "poprun" else self.place.server.process]
        try:
            below = job.children(recursive=True)
            mpiruns = [p for p in below if p.name() in ("mpirun", "mpiexec.hydra")]
        except psutil.Error:
            return []
        if part == "mpirun":
            return mpiruns
        if part == "instance":
            return [p for p in below if command_line(p)[-1:] == [self.word]]
        return [p for p in below if command_line(p)[4:5] == [part]][:1]

    def _find_wrong_at_end(self) -> list[str]:
        limit = time.monotonic() + FREE_S
        while (wrong := self._find_wrong()) and time.monotonic() < limit:
            time.sleep(0.1)
        wrong += [path.name for path in self.place.locks.glob("double-*")]
        for path in self.place.locks.iterdir():
            self.place.attached += path.name.startswith("once-")
            path.unlink()
        return wrong

    def _find_wrong(self) -> list[str]:
        wrong = self.find_processes()
        for name, inventory in self.place.inventories():
            try:
                wrong += [f"{name}: {what}" for what in inconsistencies(inventory)]
            except VipuError as error:
                wrong.append(f"{name}: {error}")
        return wrong


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
                PartitionRequest(
                    name=KEPT, size=16, reconfigurable=True, cluster="for-kept"
                )
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
    wrong = [f"lease {lease.id[:8]} is held" for lease in inventory.list_leases()]
    wrong += [f"{r.device} is held" for r in inventory.list_reservations()]
    partitions = inventory.list_partitions()
    wrong += [f"partition {p.name} is left" for p in partitions if p.name != KEPT]
    if not wrong:
        # All IPUs are free: those of the whole cluster are found.
        whole = PartitionRequest(
            name="whole", size=16, cluster=inventory.list_clusters()[0].name
        )
        names = {cluster.name for cluster in inventory.list_clusters()} - {"for-kept"}
        for name in names:
            try:
                partition = inventory.create_partition(replace(whole, cluster=name))
                if numbering.positions(partition) != tuple(range(16)):
                    wrong.append(f"{partition} is not the whole cluster")
                inventory.remove_partition("whole")
            except VipuError as error:
                wrong.append(str(error))
    inventory.close()
    return wrong


def main() -> int:
    parser = make_parser(str(__doc__), rounds=50)
    parser.add_argument(
        "--mpirun", action="append", help="Repeatable. Default: mpirun and local."
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        mpiruns = options.mpirun or ["local", str(BIN / "mpirun")]
        # Jobs run in another directory.
        mpiruns = [m if m == "local" else os.path.abspath(m) for m in mpiruns]
        os.chdir(name)
        place = Place(Path(name), mpiruns)
        failed = run_rounds(options, lambda n: Round(n, options.seed, place))
        place.server.kill()
    print(
        f"{options.rounds} rounds, instances were attached to {place.attached} IPUs, "
        f"{failed} rounds with something wrong."
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
