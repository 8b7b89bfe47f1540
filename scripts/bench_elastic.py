"""How soon a training goes on after the loss of a host, by poprun and other launchers.

    sudo python scripts/bench_elastic.py --turns 5 --horovodrun VENV/bin/horovodrun

The ways take turns in beds of three hosts with two processes each: poprun in the
process (popdist.elastic, and Horovod's API), poprun by a restart, torchrun with gloo,
and horovodrun, if its path is given; the last two with their default waits and with
short ones. Each trains the same model; those that restart load a snapshot. The last
host is killed, or with --cut cut off. For each way it prints how many seconds later the
others end their next step, how many seconds later a restarted program begins, and the
ratio of the former to the first way's.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile

from elastic_bed import Bed, wait_until

FOLDER = "/root/state"
HOSTS = "h0,h1,h2"
LONGEST_S = 120.0
# The parts of the program that all ways share.
PROGRAM = """
import os, sys, time
from pathlib import Path

folder, host = Path(sys.argv[1]), os.uname().nodename

def note(name, line):
    with open(folder / f"{name}-{host}-{os.getpid()}", "a") as file:
        file.write(line + "\\n")

note("begins", f"{time.monotonic()} 0")

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
model = torch.nn.Linear(1000, 100)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)

def train(network, size, step, commit):
    while True:
        optimizer.zero_grad()
        network(torch.randn(8, 1000)).square().mean().backward()
        optimizer.step()
        step += 1
        commit(step)
        note("steps", f"{time.monotonic()} {size}")
        time.sleep(0.01)
"""
ELASTIC = """
import popdist.torch
from popdist import elastic
state = elastic.State(model=model, step=0)

@elastic.run
def run(state):
    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group("popdist")
    def commit(step):
        state.step = step
        state.commit()
    train(DistributedDataParallel(model), dist.get_world_size(), state.step, commit)

run(state)
"""
SNAPSHOTS = """
dist.init_process_group("gloo")
step, path = 0, folder / "snapshot.pt"
if path.exists():
    snapshot = torch.load(path)
    model.load_state_dict(snapshot["model"])
    step = snapshot["step"]

def commit(step):
    if dist.get_rank() == 0:
        torch.save({"model": model.state_dict(), "step": step}, folder / "new.pt")
        os.replace(folder / "new.pt", path)

train(DistributedDataParallel(model), dist.get_world_size(), step, commit)
"""
HOROVOD = """
import horovod.torch as hvd
hvd.init()
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
state = hvd.elastic.TorchState(model, optimizer, step=0)

@hvd.elastic.run
def run(state):
    def commit(step):
        state.step = step
        state.commit()
    train(model, hvd.size(), state.step, commit)

run(state)
"""
POPRUN = ["poprun", "--mpirun", "local", "--host", HOSTS, "-n", "6", "--nnodes", "1:3"]
POPRUN += ["--max-restarts", "3", "--grace", "1", "python3"]
TORCHRUN = ["torchrun", "--nnodes", "1:3", "--nproc-per-node", "2"]
TORCHRUN += ["--max-restarts", "3", "--rdzv-backend", "c10d"]
TORCHRUN += ["--rdzv-endpoint", "h0:29555", "--rdzv-id", "bench"]
# By default, torchrun waits 30 seconds for more hosts once there are enough, and takes
# a host for dead after 15 seconds of silence.
QUICK = ["--rdzv-conf", "last_call_timeout=1,keep_alive_interval=1"]
HOROVODRUN = ["-np", "6", "--min-np", "1", "-H", "h0:2,h1:2,h2:2"]
HOROVODRUN += ["--network-interfaces", "eth0"]
# By default, ranks wait 30 seconds for others that have detected the loss. The timeout
# also limits how much later one rank may start than another.
HOROVODRUN_WAITS = {
    "horovodrun-quick": ["--gloo-timeout-seconds", "10"],
    "horovodrun": [],
}
WAYS = {
    "poprun-in-process": (ELASTIC, POPRUN),
    "poprun-horovod": (HOROVOD, POPRUN),
    "poprun-restart": (SNAPSHOTS, POPRUN),
    "torchrun-quick": (SNAPSHOTS, TORCHRUN + QUICK),
    "torchrun": (SNAPSHOTS, TORCHRUN),
}


class Way:
    """A way to go on: a program, and what starts it."""

    def __init__(self, name: str, program: str, argv: list[str]) -> None:
        self.name, self.argv = name, argv
        self.program = PROGRAM + program
        self.seconds: list[float] = []

    def measure(self, *, cut: bool) -> str:
        """Let a host be lost under the training, and return how it went on."""
        with TemporaryFile("w+") as log, Bed(hosts=3, shared_home=True) as bed:
            folder = bed.front.path(FOLDER)
            folder.mkdir()
            (folder / "program.py").write_text(self.program)
            # torchrun has an agent on each host, which users start.
            launchers = [
                host.start(
                    *(*self.argv, f"{FOLDER}/program.py", FOLDER),
                    env={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
                    stdout=log,
                    stderr=log,
                )
                for host in (bed.hosts if self.argv[0] == "torchrun" else [bed.front])
            ]

            def wait(condition: Callable[[], bool], what: str) -> None:
                wait_until(
                    lambda: condition() or launchers[0].poll() is not None, LONGEST_S
                )
                if not condition():
                    log.seek(0)
                    output = "".join(log.readlines()[-20:])
                    sys.exit(f"{self.name}: no steps of {what}; its output:\n{output}")

            wait(lambda: len(times(folder, "steps", 6)) > 60, "3 hosts")
            lost_at = time.monotonic()
            if cut:
                bed["h2"].link.cut()
            else:
                bed["h2"].kill()

            def since(name: str, number: int) -> list[float]:
                at = times(folder, name, number)
                return sorted(one - lost_at for one in at if one > lost_at)

            wait(lambda: bool(since("steps", 4)), "2 hosts")
            self.seconds.append(since("steps", 4)[0])
            begins = since("begins", 0)
            begun = f", its program began after {begins[0]:.2f} s" if begins else ""
            return f"{self.name}: {self.seconds[-1]:.2f} s{begun}"


def times(folder: Path, name: str, number: int) -> list[float]:
    """Return the times of the notes of this name with this number."""
    found = []
    for path in folder.glob(f"{name}-*"):
        # The last line may not be complete.
        for line in path.read_text().split("\n")[:-1]:
            at, noted = line.split()
            if int(noted) == number:
                found.append(float(at))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--cut", action="store_true", help="Cut the host off.")
    parser.add_argument(
        "--horovodrun",
        type=Path,
        help="The program of a Horovod with torch and gloo, not below /root or /tmp.",
    )
    parser.add_argument("--ways", help="Some of the ways; by default all.")
    options = parser.parse_args()
    known = dict(WAYS)
    if options.horovodrun:
        python = str(options.horovodrun.with_name("python3"))
        for name, waits in HOROVODRUN_WAITS.items():
            argv = [str(options.horovodrun), *HOROVODRUN, *waits, python]
            known[name] = (HOROVOD, argv)
    names = options.ways.split(",") if options.ways else list(known)
    if unknown := set(names) - set(known):
        parser.error(f"--ways names {unknown}, but the ways are {', '.join(known)}.")
    ways = [Way(name, *known[name]) for name in names]
    for _ in range(options.turns):
        for way in ways:
            print(way.measure(cut=options.cut), flush=True)
    first = statistics.median(ways[0].seconds)
    for way in ways:
        median = statistics.median(way.seconds)
        ends = f"{min(way.seconds):.2f} to {max(way.seconds):.2f}"
        print(f"{way.name}: {median:.2f} s ({ends}), {median / first:.1f} times")


if __name__ == "__main__":
    main()
