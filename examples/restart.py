"""Train as train.py does, and go on from a checkpoint after a failure.

    poprun -n 4 --max-restarts 3 python examples/restart.py checkpoint.npz

Kill an instance with `kill -9` meanwhile: poprun starts the job again, and it ends with
the same weights, to the bit, as without that. The same holds when poprun or its machine
is killed and the command is given again. On several hosts, the file must be in a
directory that they share.
"""

import os
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
from train import RATE, loss_and_gradients, make_data, make_weights
from train import mean_over_all_replicas as mean_over_replicas

import popdist

STEPS_PER_CHECKPOINT = 10


def load(path):
    """Return the number of steps that are done, and the weights after them."""
    # By its file, not by the number of restarts: another poprun may have begun.
    try:
        with np.load(path) as file:
            arrays = [file[f"arr_{i}"] for i in range(len(file.files))]
    except FileNotFoundError:
        return 0, make_weights()
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise SystemExit(f"{path} is no checkpoint: {error}. Remove it.") from None
    return int(arrays[0]), arrays[1:]


def save(path, step, weights):
    """Write a checkpoint: at any moment the file is the old or the new one, whole."""
    new = path.with_name(f"{path.name}.new")
    with new.open("wb") as file:
        np.savez(file, np.array(step), *weights)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def main(path, steps=60, pause=0.0):
    popdist.init()
    group = popdist.replica_group()
    first = popdist.getReplicaIndexOffset()
    local = range(first, first + popdist.getNumLocalReplicas())
    data = [make_data(replica) for replica in local]
    is_first = popdist.getInstanceIndex() == 0
    done, weights = load(path)
    # An instance that has read an older file than the others must not go on with it.
    begins = popdist.instance_group().all_gather(np.array(done))
    if len(set(map(int, begins))) > 1:
        raise SystemExit(f"The instances have read different checkpoints: {begins}")
    if is_first:
        count = os.environ.get("POPDIST_RESTART_COUNT", "0")
        print(f"attempt {count} begins at step {done}", flush=True)
    for step in range(done, steps):
        found = [loss_and_gradients(weights, x, y) for x, y in data]
        means = mean_over_replicas(group, [[loss, *g] for loss, g in found])
        loss, *gradients = means
        weights = [w - RATE * g for w, g in zip(weights, gradients, strict=True)]
        time.sleep(pause)
        is_last = step + 1 == steps
        if is_first and ((step + 1) % STEPS_PER_CHECKPOINT == 0 or is_last):
            save(path, step + 1, weights)
            print(f"step {step + 1:3}  loss {float(loss):.6f}", flush=True)


if __name__ == "__main__":
    words = sys.argv[1:]
    if not 1 <= len(words) <= 3:
        print(
            "usage: restart.py CHECKPOINT [STEPS [PAUSE_IN_SECONDS]]\n"
            "CHECKPOINT is the file to go on from, and to write: it need not exist. "
            "For example:\npoprun -n 4 python examples/restart.py checkpoint.npz",
            file=sys.stderr,
        )
        raise SystemExit(2)
    main(Path(words[0]), int((words[1:] or [60])[0]), float((words[2:] or [0])[0]))
