"""The costs of recording calls: the same calls with and without, in turn.

    poprun --num-instances 2 --num-replicas 2 python scripts/bench_trace.py

A row has blocks of calls, or of steps of examples/train.py. They alternate between a
group with recorded calls and one without, in the same processes. Each cell is the least
or the median time of a call in a block, in microseconds. It fails where
recording takes more than 150 ns of a call, or 1 % of a step.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import popdist
from popdist.engine.group import Group
from popdist.recorder import ProcessRecorder
from popdist.session import STATE

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))

import train

BLOCKS = 300
MOST_NS, MOST_SHARE = 150, 0.01

# Microseconds of a call or step, block by block: not recorded, and recorded.
Times = tuple[list[float], list[float]]


def groups(
    recorder: ProcessRecorder, name: str, members: tuple[int, ...]
) -> list[Group]:
    """Return two groups of the same members; the second one is recorded."""
    both = [STATE.group(f"{name}{number}", members) for number in (0, 1)]
    recorder.add_group(both[1].transport, name)
    return both


def measure(both: list[Group], repeats: int, work: Callable[[Group], object]) -> Times:
    times: Times = ([], [])
    for block in range(BLOCKS):
        # Neither is always the first.
        for which in (block % 2, 1 - block % 2):
            group = both[which]
            group.barrier()
            began = time.perf_counter_ns()
            for _ in range(repeats):
                work(group)
            took = time.perf_counter_ns() - began
            times[which].append(took / repeats / 1000)
    return times


def training_step() -> Callable[[Group], object]:
    """Return a step of examples/train.py, with the data of this instance."""
    x, y = train.make_data(popdist.getReplicaIndexOffset())
    weights = train.make_weights()

    def step(group: Group) -> object:
        loss, gradients = train.loss_and_gradients(weights, x, y)
        return group.grouped_all_reduce([np.array(loss), *gradients], op="mean")

    return step


def show(title: str, times: Times) -> None:
    cells = [f"{f(each):9.3f}" for each in times for f in (min, statistics.median)]
    print(f"{title:20} {'  '.join(cells)}")


def main() -> None:
    popdist.init()
    rank, members = STATE.job.place.rank, STATE.job.members
    x = np.ones(1, np.float32)

    def call(group: Group) -> object:
        return group.all_reduce(x, "max", out=x)

    with tempfile.TemporaryDirectory() as folder:
        recorder = ProcessRecorder(folder, rank)
        alone = measure(groups(recorder, "alone", (rank,)), 100, call)
        together = measure(groups(recorder, "together", members), 100, call)
        steps = measure(groups(recorder, "train", members), 5, training_step())
        recorder.close([])
    if rank:
        return
    print(f"{'':20} {'not recorded':>20}  {'recorded':>20}")
    print(f"{'':20} {'    least   median      least   median':>42}")
    show("4 B, one member", alone)
    show(f"4 B, {len(members)} members", together)
    show("a step of train.py", steps)
    costs_ns = [
        1000 * (f(times[1]) - f(times[0]))
        for times in (alone, together)
        for f in (min, statistics.median)
    ]
    # A step makes one call.
    share = costs_ns[2] / 1000 / min(steps[0])
    print(
        f"recording takes {costs_ns[0]:.0f} ns (least) and {costs_ns[1]:.0f} ns "
        f"(median) of a call of one member, {costs_ns[2]:.0f} and {costs_ns[3]:.0f} ns "
        f"of one of several; of a step {share:.2%}"
    )
    if costs_ns[0] > MOST_NS or costs_ns[2] > MOST_NS or share > MOST_SHARE:
        raise SystemExit("Recording takes longer than it may.")


if __name__ == "__main__":
    main()
