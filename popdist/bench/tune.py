"""Measures the engine's own table: where one algorithm takes over from the other."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from popdist.bench.communicator import Communicator
from popdist.bench.results import Spread
from popdist.bench.rounds import Lane, measure
from popdist.bench.runners import Engine
from popdist.bench.sizes import in_short
from popdist.bench.tasks import make_task
from popdist.engine.group import Group
from popdist.engine.shm.shm_transport import ShmTransport
from popdist.engine.tuning import Tuning, cores_of_host
from popdist.session import STATE

# The greatest is the most that the engine's slots can hold.
_ONESHOT_SIZES = tuple(1 << k for k in range(7, 15))
_BLOCKS = tuple(1 << k for k in range(17, 23))
_BLOCK_SIZES = (1 << 20, 4 << 20, 64 << 20)
_SPINS_US = (0, 1, 4, 40, 80, 400)
_SPIN_SIZES = (4, 16 << 10)
# Two medians of the same candidate may differ by this factor.
_NOISE = 1.02

T = TypeVar("T")
# Times of one candidate at several sizes, as a share of the best at each size.
Shares = Mapping[int, Sequence[float]]
# Makes a group of all members with this tuning; each call makes another.
Connect = Callable[[Tuning], Group]


def run(comm: Communicator, path: Path, seconds: float) -> None:
    """Measure, and write the table's entry for as many members as there are here."""
    tuning = measured(comm, _connection(comm), seconds)
    entry = tuning.entry(comm.size, cores_of_host())
    if comm.rank == 0:
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        path.write_text(merged(before, entry), encoding="utf-8")
        print(f"{path}: {json.dumps(entry)}")


def measured(comm: Communicator, connect: Connect, seconds: float) -> Tuning:
    """Find the best values: first the time to spin, then the block, then the border."""
    best = Tuning.measured(comm.size, cores_of_host())

    def least_of(name: str, values: Sequence[int], sizes: Sequence[int]) -> int:
        groups = {n: connect(replace(best, **{name: n})) for n in values}
        engines = {n: Engine(group, "auto", str(n)) for n, group in groups.items()}
        shares = _compare(comm, name, engines, sizes, seconds)
        for group in groups.values():
            group.close()
        return least(shares)

    best = replace(best, spin_us=least_of("spin_us", _SPINS_US, _SPIN_SIZES))
    best = replace(best, block_bytes=least_of("block_bytes", _BLOCKS, _BLOCK_SIZES))
    with connect(replace(best, oneshot_bytes=_ONESHOT_SIZES[-1])) as roomy:
        engines = {name: Engine(roomy, name, name) for name in ("oneshot", "direct")}
        shares = _compare(comm, "algorithm", engines, _ONESHOT_SIZES, seconds)
    return replace(best, oneshot_bytes=border(_ONESHOT_SIZES, shares["direct"]))


def least(shares: Shares) -> int:
    """Return the candidate with the shortest times over all sizes together.

    Among candidates that differ only by noise, return the least one: it takes the least
    of the machine.
    """
    means = {
        n: float(np.prod(times)) ** (1 / len(times)) for n, times in shares.items()
    }
    best = min(means.values())
    return min(n for n, mean in means.items() if mean <= best * _NOISE)


def border(sizes: Sequence[int], ratios: Sequence[float]) -> int:
    """Return the greatest size up to which oneshot takes no longer than direct.

    Args:
        ratios: How many times as long as oneshot direct took at each size.
    """
    wins = [ratio >= 1 for ratio in ratios]
    # Direct must win at two sizes in a row: a single one is noise.
    first_lost = next(
        (i for i in range(len(wins)) if not any(wins[i : i + 2])), len(wins)
    )
    before = zip(sizes[:first_lost], wins, strict=False)
    return max((size for size, win in before if win), default=0)


def merged(before: str, entry: Mapping[str, str | int]) -> str:
    """Return the table with this entry in the place of the one that it replaces."""
    entries = json.loads(before)["entries"] if before else []
    others = [e for e in entries if e["members"] != entry["members"]]
    # In the format of tuning.json: "fit" first, an entry a line.
    table = sorted([*others, entry], key=lambda e: str(e["members"]), reverse=True)
    lines = ",\n".join(f"    {json.dumps(e)}" for e in table)
    return f'{{\n  "entries": [\n{lines}\n  ]\n}}\n'


def _compare(
    comm: Communicator,
    parameter: str,
    engines: Mapping[T, Engine],
    sizes: Sequence[int],
    seconds: float,
) -> dict[T, list[float]]:
    """Return each engine's times as a share of the first one's, at each size."""
    shares: dict[T, list[float]] = {value: [] for value in engines}
    for size in sizes:
        task = make_task("all_reduce", size, "float32", comm.rank, comm.size)
        lanes = [
            Lane(name=engine.name, task=task, run=engine.runner(task))
            for engine in engines.values()
        ]
        times = measure(comm, lanes, seconds, lambda: 0.0).seconds
        for value, column in zip(engines, times.T, strict=True):
            shares[value].append(Spread.of(column / times[:, 0]).median)
        if comm.rank == 0:
            text = ", ".join(
                f"{value} {ratio[-1]:.2f}" for value, ratio in shares.items()
            )
            print(
                f"{parameter}, times of the first at {in_short(size)}: {text}",
                flush=True,
            )
    return shares


def _connection(comm: Communicator) -> Connect:
    count = 0

    def connect(tuning: Tuning) -> Group:
        nonlocal count
        count += 1
        # A new name for each group: members meet by it.
        name = f"{STATE.job.shared_name}.tune{count}" if comm.size > 1 else ""
        meeting = STATE.meeting_of("tune", STATE.job.members)._replace(name=name)
        return Group(ShmTransport.meet(meeting, tuning=tuning))

    return connect
