"""A training that goes on when instances end, and when others join it.

    poprun --mpirun local -n 4 --min-instances 2 --max-restarts 5 python elastic.py 0.1

Kill an instance (kill -9 PID) while it runs: the others go on from the last commit,
and a new one in its place joins them. The number is a pause in each step, in seconds; 0
without it.
"""

import os
import sys
import time

import numpy as np

import popdist
from popdist import elastic

SAMPLES, STEPS = 4096, 200
PAUSE_S = float((sys.argv[1:] or [0])[0])


def gradient_of(weights: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return 2 * x.T @ (x @ weights - y) / len(x)


@elastic.run
def train(state: elastic.State, x: np.ndarray, y: np.ndarray) -> None:
    # What depends on the members is made here: this runs again when they change.
    group = popdist.instance_group()
    print(
        f"generation {elastic.generation()}: instance {group.rank} of {group.size} "
        f"begins with step {state.step}, pid {os.getpid()}",
        flush=True,
    )
    while state.step < STEPS:
        share = slice(group.rank, None, group.size)
        gradient = gradient_of(state.weights, x[share], y[share])
        state.weights -= 0.1 * group.all_reduce(gradient, "mean")
        state.step += 1
        time.sleep(PAUSE_S)
        if state.step % 10 == 0:
            state.commit()


def main() -> None:
    random = np.random.default_rng(1)
    x = random.standard_normal((SAMPLES, 8))
    truth = np.arange(8.0)
    y = x @ truth
    # Made before the long part of the start, so that poprun knows the instance.
    state = elastic.State(weights=np.zeros(8), step=0)
    train(state, x, y)
    error = np.abs(state.weights - truth).max()
    print(f"after step {state.step} the largest error is {error:.6f}", flush=True)


main()
