"""The results as a table: one line a size, and never a time without its ratio."""

from collections.abc import Sequence

import numpy as np

from popdist.bench.results import FLOOR, Result, Spread
from popdist.bench.sizes import in_short

_COLUMN = 30

LEGEND = """\
The number after the mode is how many GB/s one member reads of what another one has
just written. The number after each time is a ratio: for a peer, its time divided by
the engine's; for the floor, in which every member copies an array of that size, the
engine's time divided by it. Ratios are medians over the rounds, with quartiles. Compare
ratios, not times of different lines: a machine's speed changes by the second."""


def heading(
    operation: str,
    dtype: str,
    members: int,
    placement: Sequence[str],
    peers: Sequence[str],
) -> str:
    """Return what stands above the lines of one operation and dtype."""
    cpus = " | ".join(placement)
    count = f"{members} members" if members > 1 else "1 member"
    where = ", in place" if operation == "all_reduce" else ""
    title = f"{operation} of {dtype}{where}; {count} on CPUs {cpus}"
    columns = "".join(f"{name:>{_COLUMN}}" for name in (*peers, FLOOR))
    return f"{title}\n{'size':>6}  {'mode':12} {'algorithm':9} {'engine':>11}{columns}"


def line(result: Result, peers: Sequence[str]) -> str:
    """Return the line of one size."""
    columns = [
        _column(result.peers[name], result.ratios[name])
        if name in result.peers
        else "error"
        for name in peers
    ]
    columns.append(_column(result.floor_us, result.ratios[FLOOR]))
    # How fast one member reads what another has just written, in GB/s.
    read = "" if result.read_gb_per_s is None else f" {result.read_gb_per_s:.1f}"
    return (
        f"{in_short(result.bytes):>6}  {result.mode + read:12} {result.algorithm:9} "
        f"{time(result.engine_us):>11}"
        + "".join(f"{column:>{_COLUMN}}" for column in columns)
    )


def sentences(result: Result) -> list[str]:
    """Return why each peer without a time has none."""
    size = f"{result.operation} of {in_short(result.bytes)} of {result.dtype}"
    return [f"{name}, {size}: {why}." for name, why in result.errors.items()]


def reading(results: Sequence[Result]) -> str:
    """Return the sizes at which times include reading the result; empty if none."""
    sizes = [result.bytes for result in results if result.reads_result]
    if not sizes:
        return ""
    return f"From {in_short(min(sizes))} on, times include one read of the result."


def blocks(results: Sequence[Result]) -> str:
    """Return what "direct" has settled on at each size; empty if it was not used."""
    settled = [
        f"{in_short(r.bytes)} {in_short(r.blocks[0])}" + " past caches" * r.blocks[1]
        for r in results
        if r.blocks
    ]
    return f"Blocks of direct, by size: {', '.join(settled)}." if settled else ""


def waits(results: Sequence[Result]) -> str:
    """Return how the engine waited in each call, over some results."""
    medians = {
        name: np.median([result.waits[name] for result in results])
        for name in results[0].waits
    }
    counts = ", ".join(
        f"{name.replace('_', ' ')} {_three_digits(float(n))}"
        for name, n in medians.items()
    )
    busy = results[0].busy_processes
    beside = f" Busy processes beside: {busy}." if busy else ""
    return f"Waits in a call, of the member with the most: {counts}.{beside}"


def time(us: float) -> str:
    """Return a time with three digits."""
    if us < 1000:
        return f"{_three_digits(us)} us"
    return f"{_three_digits(us / 1000)} ms"


def _column(us: float, ratio: Spread) -> str:
    numbers = (_three_digits(n) for n in (ratio.median, ratio.lower, ratio.upper))
    return "{} {}x ({}-{})".format(time(us), *numbers)


def _three_digits(number: float) -> str:
    digits = 2 if number < 9.995 else 1 if number < 99.95 else 0
    return f"{number:.{digits}f}"
