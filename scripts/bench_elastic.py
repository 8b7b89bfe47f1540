"""How soon a training goes on after its host was killed, by poprun and by torchrun.

    sudo python scripts/bench_elastic.py --turns 5

Four ways take turns in beds of three hosts, with one process a host: poprun in the
process (popdist.elastic), poprun by a restart, and torchrun with gloo, with its default
waits and with short ones. Each trains the same model; those that restart load a
snapshot. The last host is killed, or with --cut cut off. It prints the seconds from
then to the end of the next step of the others, and the ratios to the first way.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from elastic_bed import Bed, wait_until

FOLDER = "/root/state"
HOSTS = "h0,h1,h2"
LONGEST_S = 120.0
# The parts of the program that all ways share.
PROGRAM = """
import os, sys, time
from pathlib import Path
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
model = torch.nn.Linear(1000, 100)
folder = Path(sys.argv[1])

def train(step, commit):
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    while True:
        optimizer.zero_grad()
        parallel(torch.randn(8, 1000)).square().mean().backward()
        optimizer.step()
        step += 1
        commit(step)
        with open(folder / f"steps-{os.uname().nodename}", "a") as file:
            file.write(f"{time.monotonic()} {dist.get_world_size()}\\n")
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
    train(state.step, commit)

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

train(step, commit)
"""
POPRUN = ["poprun", "--mpirun", "local", "--host", HOSTS, "-n", "3", "--nnodes", "1:3"]
POPRUN += ["--max-restarts", "3", "--grace", "1", "python3"]
TORCHRUN = ["torchrun", "--nnodes", "1:3", "--nproc-per-node", "1"]
TORCHRUN += ["--max-restarts", "3", "--rdzv-backend", "c10d"]
TORCHRUN += ["--rdzv-endpoint", "h0:29555", "--rdzv-id", "bench"]
# By default, torchrun waits 30 seconds for more hosts once there are enough, and takes
# a host for dead after 15 seconds of silence.
QUICK = ["--rdzv-conf", "last_call_timeout=1,keep_alive_interval=1"]
WAYS = {
    "poprun-in-process": (ELASTIC, POPRUN),
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

    def measure(self, *, cut: bool) -> float:
        """Return the seconds from the loss of a host to the next step of two."""
        with Bed(hosts=3, shared_home=True) as bed:
            folder = bed.front.path(FOLDER)
            folder.mkdir()
            (folder / "program.py").write_text(self.program)
            # torchrun has an agent on each host, which users start.
            for host in bed.hosts if self.argv[0] == "torchrun" else [bed.front]:
                host.start(
                    *(*self.argv, f"{FOLDER}/program.py", FOLDER),
                    env={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            wait(lambda: len(steps(folder, 3, 0)) > 30, f"{self.name}: 3 hosts")
            lost_at = time.monotonic()
            if cut:
                bed["h2"].link.cut()
            else:
                bed["h2"].kill()
            wait(lambda: bool(steps(folder, 2, lost_at)), f"{self.name}: 2 hosts")
            return min(steps(folder, 2, lost_at)) - lost_at


def wait(condition: Callable[[], bool], what: str) -> None:
    if not wait_until(condition, LONGEST_S):
        sys.exit(f"{what}: no step within {LONGEST_S} s")


def steps(folder: Path, size: int, after: float) -> list[float]:
    """Return when steps of so many processes have ended."""
    times = []
    for path in folder.glob("steps-*"):
        # The last line may not be complete.
        for line in path.read_text().split("\n")[:-1]:
            at, number = line.split()
            if float(at) > after and int(number) == size:
                times.append(float(at))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--cut", action="store_true", help="Cut the host off.")
    parser.add_argument("--ways", default=",".join(WAYS), help="Some of the ways.")
    options = parser.parse_args()
    ways = [Way(name, *WAYS[name]) for name in options.ways.split(",")]
    for _ in range(options.turns):
        for way in ways:
            way.seconds.append(way.measure(cut=options.cut))
            print(f"{way.name}: {way.seconds[-1]:.2f} s", flush=True)
    first = statistics.median(ways[0].seconds)
    for way in ways:
        median = statistics.median(way.seconds)
        ends = f"{min(way.seconds):.2f} to {max(way.seconds):.2f}"
        print(f"{way.name}: {median:.2f} s ({ends}), {median / first:.1f} times")


if __name__ == "__main__":
    main()
