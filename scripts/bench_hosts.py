"""Compare all-reduces over several hosts with MPIs' and gloo's, in a test bed.

    sudo python scripts/bench_hosts.py --hosts 2 --rate 1gbit

Every engine takes its turn in each of some rounds. Printed are the medians, in
microseconds, and ratios: of the best peer to popdist with each kind of links, and of
the better popdist's parts to it, an exchange between hosts and an all-reduce of as many
members on one host. It needs the rights to make network namespaces.
"""

import argparse
import json
import os
import secrets
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from beds.bed import Bed  # noqa: E402
from beds.mpiruns import AS_ROOT, command  # noqa: E402

from popdist.bench.load import busy_processes  # noqa: E402

MEMBER = str(ROOT / "scripts/bench_member.py")
# The candidates: an engine, and the MPI that starts its processes.
ENGINES = {
    "popdist, Open MPI": ("engine", "openmpi5"),
    "popdist, MPICH": ("engine", "hydra"),
    "popdist, TCP": ("engine", "hydra"),
    "Open MPI yielding": ("mpi", "openmpi5"),
    "MPICH": ("mpi", "hydra"),
    "gloo": ("gloo", "hydra"),
    "exchange, MPICH": ("exchange", "hydra"),
    "popdist, one host": ("engine", "hydra"),
}
BY_MPI = "popdist, Open MPI", "popdist, MPICH"
BY_TCP = ("popdist, TCP",)
PEERS = "Open MPI yielding", "MPICH", "gloo"
PARTS = "exchange, MPICH", "popdist, one host"
# Each ratio: its name, our engines, the others, and how to combine the others' times.
RATIOS = (
    ("best peer / by MPI", BY_MPI, PEERS, min),
    ("best peer / by TCP", BY_TCP, PEERS, min),
    ("its parts / ours", BY_MPI + BY_TCP, PARTS, sum),
)
# Where gloo's first member listens.
GLOO_PORT = 29871
# How many seconds a size is measured in each round.
SECONDS = 0.2


def measure(
    bed: Bed, name: str, sizes: str, instances: int, *, own_cores: bool
) -> dict[int, float]:
    """Return how long each size takes with an engine."""
    engine, mpi = ENGINES[name]
    program = ["env", f"PYTHONPATH={ROOT}"]
    if name in BY_TCP:
        links = f"tcp://{bed.front.address}:29870/{secrets.token_hex()}"
        program.append(f"POPDIST_LINKS={links}")
    program.append(sys.executable)
    program += [MEMBER, engine, "--sizes", sizes, "--dtype", "float32"]
    program += ["--seconds", str(SECONDS)]
    program += ["--store", f"{bed.front.address}:{GLOO_PORT}"]
    hosts = bed.hosts
    if name == "popdist, one host":
        hosts, instances = hosts[:1], instances * len(hosts)
    elif own_cores:
        program.append("--own-core")
    words = command(hosts, mpi, instances, program)
    process = bed.front.start(*words, env=AS_ROOT, stdout=subprocess.PIPE)
    assert process.stdout
    line = process.stdout.readline()
    bed.clean()
    process.communicate()
    return {int(size): us for size, us in json.loads(line or b"{}").items()}


def ratios(medians: dict[tuple[str, int], float], sizes: list[int]) -> Iterator[str]:
    """Yield how the better of ours compares with its peers and with its parts."""
    for name, own, others, together in RATIOS:
        cells = []
        for size in sizes:
            ours = [medians[one, size] for one in own if (one, size) in medians]
            theirs = [medians[one, size] for one in others if (one, size) in medians]
            known = ours and len(theirs) == len(others)
            ratio = f"{together(theirs) / min(ours):.2f}" if known else "-"
            cells.append(f"{ratio:>10}")
        yield f"{name:20} {' '.join(cells)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--instances", type=int, default=2, help="on each host")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", default="4,4096,65536,1048576,4194304,67108864")
    parser.add_argument("--engines", default="", help="parts of names, with commas")
    parser.add_argument("--rate", default="", help="of the links, as 1gbit")
    parser.add_argument("--delay", type=float, default=0, help="milliseconds")
    parser.add_argument("--loss", type=float, default=0, help="percent of frames")
    parser.add_argument(
        "--busy", action="store_true", help="with a busy process a core"
    )
    parser.add_argument(
        "--own-cores",
        action="store_true",
        help="give each host a core, so that hosts share none (if there are enough)",
    )
    given = parser.parse_args()
    parts = given.engines.split(",")
    names = [name for name in ENGINES if any(part in name for part in parts)]
    found: dict[tuple[str, int], list[float]] = defaultdict(list)
    busy = os.cpu_count() or 1 if given.busy else 0
    with Bed(hosts=given.hosts) as bed, busy_processes(busy):
        if given.rate or given.delay or given.loss:
            bed.shape(given.rate, given.delay, given.loss / 100)
        for _ in range(given.rounds):
            for name in names:
                took = measure(
                    bed, name, given.sizes, given.instances, own_cores=given.own_cores
                )
                for size, us in took.items():
                    found[name, size].append(us)
    sizes = [int(size) for size in given.sizes.split(",")]
    medians = {key: median(values) for key, values in found.items()}
    print(f"{'bytes':20}", *(f"{size:>10}" for size in sizes))
    for name in names:
        cells = (medians.get((name, size)) for size in sizes)
        print(f"{name:20}", *(f"{c:10.0f}" if c else f"{'-':>10}" for c in cells))
    print(*ratios(medians, sizes), sep="\n")


if __name__ == "__main__":
    main()
