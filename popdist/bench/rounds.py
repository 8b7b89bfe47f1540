"""How candidates are measured: in turn, every few milliseconds, for many rounds.

The speed of a machine changes by the second, so times are compared only within a
round, in which every candidate has a burst of calls. A burst is made of passes: rows
are rewritten, all members meet, and then each row is reduced once. Only the calls are
timed, of whatever size: no input has been used before, none is written in the
timed part, and of small ones there are many in a pass, so that neither the clock nor
the way out of the barrier counts. The slowest member's time is the burst's.

Large results are read within the timed part, unless that is switched off: a store past
the caches makes a call shorter, and whatever uses its result longer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter, perf_counter_ns

import numpy as np

from popdist.bench.communicator import Communicator, Floats
from popdist.bench.runners import Run
from popdist.bench.tasks import Task, read

# How long a burst is, if a call takes less.
BURST_SECONDS = 0.0025
_MOST_CALLS = 4096
_BURSTS_BEFORE = 4
# Quartiles of fewer would say nothing.
LEAST_ROUNDS = 5
# Smaller results stay in the caches next to a core, however they were stored.
READ_FROM_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Lane:
    """A candidate at one size, with the task that it carries out."""

    name: str
    task: Task
    run: Run
    # Whether results are read within the timed part.
    reads: bool = False
    # How this member has waited so far, in counters that only grow: see Group.waits.
    waits: Callable[[], Sequence[int]] = tuple
    # The sums of all bursts: the number of calls, and this member's waits in them.
    waited: list[int] = field(default_factory=lambda: [0] * 5)


@dataclass(frozen=True, kw_only=True, slots=True)
class Samples:
    """The measurements: one row for each round, the same on every member."""

    # Seconds a call of each lane, in the order of the lanes.
    seconds: Floats
    # The probe's results.
    probed: Floats


def measure(
    comm: Communicator,
    lanes: Sequence[Lane],
    seconds: float,
    probe: Callable[[], float],
) -> Samples:
    """Run rounds until the time is over. Every member must call it alike."""
    calls = _calls_a_burst(comm, lanes)
    rounds: list[Floats] = []
    began = perf_counter()
    elapsed = 0.0
    while elapsed < seconds or len(rounds) < LEAST_ROUNDS:
        row = np.zeros(len(lanes) + 2)
        # Another lane begins each round: a lane after a slow one, or after the probe,
        # finds other contents in the caches than later lanes.
        for i in range(len(rounds), len(rounds) + len(lanes)):
            lane = i % len(lanes)
            row[lane] = burst(comm, lanes[lane], calls[lane])
        row[-2:] = probe(), perf_counter() - began
        # All members learn the same times, so all of them stop in the same round.
        rounds.append(comm.greatest(row))
        elapsed = rounds[-1][-1]
    table = np.array(rounds)
    return Samples(seconds=table[:, :-2], probed=table[:, -2])


def burst(comm: Communicator, lane: Lane, calls: int) -> float:
    """Return the seconds that a call took this member, on average over a burst."""
    task = lane.task
    depth = min(calls, len(task.inputs))
    passes = calls // depth
    spent = 0
    for _ in range(passes):
        for row in task.inputs[:depth]:
            np.copyto(row, task.source)
        comm.barrier()
        before = lane.waits()
        began = perf_counter_ns()
        lane.run(depth)
        if lane.reads:
            read(task.results[:depth])
        spent += perf_counter_ns() - began
        _count(lane, before, depth)
    return spent / 1e9 / (passes * depth)


def _count(lane: Lane, before: Sequence[int], calls: int) -> None:
    after = lane.waits()
    more = [calls, *(now - then for now, then in zip(after, before, strict=True))]
    lane.waited[: len(more)] = [
        total + new for total, new in zip(lane.waited, more, strict=False)
    ]


def _calls_a_burst(comm: Communicator, lanes: Sequence[Lane]) -> list[int]:
    """Return how often each lane is called in a burst, the same on every member."""
    calls = [1] * len(lanes)
    # The first calls of any lane are slow, and any burst may be held up: the fastest
    # one counts. In a burst of few calls, the way out of the barrier would count.
    for _ in range(_BURSTS_BEFORE):
        seconds = [burst(comm, lane, n) for lane, n in zip(lanes, calls, strict=True)]
        slowest = comm.greatest(np.array(seconds))
        fitting = (min(_MOST_CALLS, int(BURST_SECONDS / t)) for t in slowest)
        calls = [max(pair) for pair in zip(calls, fitting, strict=True)]
    return calls
