"""Compare all-reduces over several hosts with those of MPIs and gloo, in a test bed.

    sudo make bench-hosts HOSTS=2 RATE=1gbit

Every engine takes its turn in each of some rounds; what is printed are the medians, in
microseconds. It needs the rights to make network namespaces.
"""

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from beds.bed import Bed  # noqa: E402
from beds.mpiruns import AS_ROOT, command  # noqa: E402

MEMBER = str(ROOT / "scripts/bench_hosts_member.py")
# What is compared: the engine, and the MPI that starts it.
ENGINES = {
    "popdist, Open MPI": ("popdist", "openmpi5"),
    "popdist, MPICH": ("popdist", "hydra"),
    "Open MPI yielding": ("mpi", "openmpi5"),
    "MPICH": ("mpi", "hydra"),
    "gloo": ("gloo", "hydra"),
    "exchange, MPICH": ("exchange", "hydra"),
}


def measure(bed: Bed, name: str, sizes: str, instances: int) -> dict[int, float]:
    """Return how long each size takes with an engine."""
    engine, mpi = ENGINES[name]
    program = ["env", f"PYTHONPATH={ROOT}", sys.executable]
    program += [MEMBER, engine, sizes, bed.front.address]
    words = command(bed, mpi, instances, program)
    process = bed.front.start(*words, env=AS_ROOT, stdout=subprocess.PIPE)
    assert process.stdout
    line = process.stdout.readline()
    bed.clean()
    process.communicate()
    return {int(size): us for size, us in json.loads(line or b"{}").items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--instances", type=int, default=2, help="on each host")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", default="4,4096,65536,1048576,4194304,67108864")
    parser.add_argument("--engines", default="", help="parts of names, with commas")
    parser.add_argument("--rate", default="", help="of the links, as 1gbit")
    parser.add_argument("--delay", type=float, default=0, help="milliseconds")
    parser.add_argument("--loss", type=float, default=0, help="percent")
    given = parser.parse_args()
    parts = given.engines.split(",")
    names = [name for name in ENGINES if any(part in name for part in parts)]
    found: dict[tuple[str, int], list[float]] = defaultdict(list)
    with Bed(hosts=given.hosts) as bed:
        if given.rate or given.delay or given.loss:
            bed.shape(given.rate, given.delay, given.loss)
        for _ in range(given.rounds):
            for name in names:
                for size, us in measure(
                    bed, name, given.sizes, given.instances
                ).items():
                    found[name, size].append(us)
    sizes = [int(size) for size in given.sizes.split(",")]
    print(f"{'bytes':20}", *(f"{size:>10}" for size in sizes))
    for name in names:
        cells = (found.get((name, size)) for size in sizes)
        print(
            f"{name:20}", *(f"{median(c):10.0f}" if c else f"{'-':>10}" for c in cells)
        )


if __name__ == "__main__":
    main()
