"""The measurements at one size."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from popdist.bench.communicator import Floats

# The lane to compare all others with, and the lane that is no peer.
ENGINE = "engine"
FLOOR = "floor"
# How a member of the engine waits, as Group.waits counts it.
WAITS = ("spins", "yields", "late_yields", "sleeps")


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """A median, and the quartiles that a quarter each lies below and above."""

    median: float
    lower: float
    upper: float

    @classmethod
    def of(cls, values: Floats) -> "Spread":
        lower, median, upper = np.percentile(values, [25, 50, 75]).tolist()
        return cls(median=median, lower=lower, upper=upper)


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """One size of one dtype, and as JSON one object of the list that --json writes."""

    operation: str
    dtype: str
    bytes: int
    members: int
    # The algorithm that the engine chose, or had to use.
    algorithm: str
    in_arena: bool
    # With "direct": the bytes of a block, and whether it is written past the caches.
    blocks: tuple[int, bool] | None
    # Whether the time includes that each member reads its result once.
    reads_result: bool
    mode: str
    read_gb_per_s: float | None
    placement: Sequence[str]
    rounds: int
    # Medians over the rounds. No quotient of two of them is a ratio.
    engine_us: float
    floor_us: float
    peers: Mapping[str, float]
    # How many times as long as the engine each peer took; for the floor, how many
    # times as long as the floor the engine took. The median of all rounds' ratios.
    ratios: Mapping[str, Spread]
    # Why a peer has no time here.
    errors: Mapping[str, str]
    # How many processes were kept busy beside the members.
    busy_processes: int
    # How often an engine's member spun with success, yielded, yielded for longer than
    # peers work, and slept: in each call, of the member with the most.
    waits: Mapping[str, float]


def microseconds(names: Sequence[str], seconds: Floats) -> dict[str, float]:
    """Return the median of each lane."""
    medians = np.median(seconds, axis=0) * 1e6
    return dict(zip(names, medians.tolist(), strict=True))


def ratios(names: Sequence[str], seconds: Floats) -> dict[str, Spread]:
    """Return the spread of what each round says, of every lane but the engine's."""
    engine = seconds[:, names.index(ENGINE)]
    spreads = {}
    for name, lane in zip(names, seconds.T, strict=True):
        if name == FLOOR:
            spreads[name] = Spread.of(engine / lane)
        elif name != ENGINE:
            spreads[name] = Spread.of(lane / engine)
    return spreads
