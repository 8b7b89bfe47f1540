"""Measures the engine's own table: where one algorithm takes over from the other."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from popdist.bench.meeting import Meeting
from popdist.bench.results import Spread
from popdist.bench.rounds import Lane, measure
from popdist.bench.runners import Engine
from popdist.bench.sizes import in_short
from popdist.bench.tasks import task
from popdist.engine.tuning import Tuning, cores_of_host

if TYPE_CHECKING:
    from popdist.engine.group import Group

# The greatest is the most that the engine's slots can hold.
_ONESHOT_SIZES = tuple(1 << k for k in range(7, 15))
_BLOCKS = tuple(1 << k for k in range(17, 23))
_BLOCK_SIZES = (1 << 20, 4 << 20, 64 << 20)
_SPINS_US = (0, 1, 4, 40, 80, 400)
_SPIN_SIZES = (4, 16 << 10)
# What two medians of the same thing may differ by.
_NOISE = 1.02

# Times of one candidate at several sizes, as a share of the best at each size.
Shares = Mapping[int, Sequence[float]]
# Makes a group of all members with this tuning; each call makes another.
Connect = Callable[[Tuning], "Group"]


def run(meeting: Meeting, path: Path, seconds: float) -> None:
    """Measure, and write the table's entry for as many members as there are here."""
    tuning = measured(meeting, _connection(meeting), seconds)
    entry = tuning.entry(meeting.size, cores_of_host())
    if meeting.rank == 0:
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        path.write_text(merged(before, entry), encoding="utf-8")
        print(f"{path}: {json.dumps(entry)}")


def measured(meeting: Meeting, connect: Connect, seconds: float) -> Tuning:
    """Return what wins: first how long to spin, then the block, then the border."""
    best = Tuning.measured(meeting.size, cores_of_host())
    spins = {n: replace(best, spin_us=n) for n in _SPINS_US}
    shares = _compare(meeting, connect, "spin_us", spins, _SPIN_SIZES, seconds)
    best = replace(best, spin_us=least(shares))
    blocks = {n: replace(best, block_bytes=n) for n in _BLOCKS}
    shares = _compare(meeting, connect, "blocks", blocks, _BLOCK_SIZES, seconds)
    best = replace(best, block_bytes=least(shares))
    roomy = connect(replace(best, oneshot_bytes=_ONESHOT_SIZES[-1]))
    ratios = [_direct_to_oneshot(meeting, roomy, n, seconds) for n in _ONESHOT_SIZES]
    roomy.close()
    return replace(best, oneshot_bytes=border(_ONESHOT_SIZES, ratios))


def least(shares: Shares) -> int:
    """Return the candidate whose times are the shortest over all sizes together.

    Of those that are as good but for noise, it is the least, which takes the least
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
    # One size that noise has spoilt between two that are won is no border.
    first_lost = next(
        (i for i in range(len(wins)) if not any(wins[i : i + 2])), len(wins)
    )
    won = [
        n for n, wins_here in zip(sizes[:first_lost], wins, strict=False) if wins_here
    ]
    return won[-1] if won else 0


def merged(before: str, entry: Mapping[str, str | int]) -> str:
    """Return the table with this entry in the place of the one that it replaces."""
    entries = json.loads(before)["entries"] if before else []
    kept = [e for e in entries if e["members"] != entry["members"]]
    # As the engine ships it: "fit" first, an entry a line.
    table = sorted([*kept, entry], key=lambda e: str(e["members"]), reverse=True)
    lines = ",\n".join(f"    {json.dumps(e)}" for e in table)
    return f'{{\n  "entries": [\n{lines}\n  ]\n}}\n'


def _compare(
    meeting: Meeting,
    connect: Connect,
    what: str,
    tunings: Mapping[int, Tuning],
    sizes: Sequence[int],
    seconds: float,
) -> dict[int, list[float]]:
    """Return each tuning's times as a share of the first one's, at each size."""
    groups = {n: connect(tuning) for n, tuning in tunings.items()}
    shares: dict[int, list[float]] = {n: [] for n in tunings}
    for size in sizes:
        engines = [Engine(group, "auto", str(n)) for n, group in groups.items()]
        times = _rounds(meeting, engines, size, seconds)
        for n, column in zip(tunings, times.T, strict=True):
            shares[n].append(Spread.of(column / times[:, 0]).median)
        if meeting.rank == 0:
            text = ", ".join(f"{n} {share[-1]:.2f}" for n, share in shares.items())
            print(f"{what}, times of the first at {in_short(size)}: {text}", flush=True)
    for group in groups.values():
        group.close()
    return shares


def _direct_to_oneshot(
    meeting: Meeting, group: "Group", size: int, seconds: float
) -> float:
    engines = [Engine(group, name, name) for name in ("oneshot", "direct")]
    times = _rounds(meeting, engines, size, seconds)
    ratio = Spread.of(times[:, 1] / times[:, 0]).median
    if meeting.rank == 0:
        print(f"{in_short(size)}: direct takes {ratio:.2f} times oneshot", flush=True)
    return ratio


def _rounds(
    meeting: Meeting, engines: Sequence[Engine], size: int, seconds: float
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Return the seconds that each engine took in each round."""
    todo = task("all_reduce", size, "float32", meeting.rank, meeting.size)
    lanes = [Lane(name=e.name, task=todo, run=e.runner(todo)) for e in engines]
    return measure(meeting, lanes, seconds, lambda: 0.0).seconds


def _connection(meeting: Meeting) -> Connect:
    # Not above: they meet other instances, and what is pure here needs none.
    from popdist.engine.group import Group
    from popdist.engine.shm.transport import ShmTransport
    from popdist.session import STATE

    count = 0

    def connect(tuning: Tuning) -> "Group":
        nonlocal count
        count += 1
        # A name of its own for each: members meet by it.
        name = f"{STATE.job.meeting}.tune{count}" if meeting.size > 1 else ""
        transport = ShmTransport.meet(
            name,
            meeting.rank,
            STATE.job.members,
            timeout=STATE.job.settings.timeout,
            stall=STATE.job.settings.stall,
            tuning=tuning,
        )
        return Group(transport)

    return connect
