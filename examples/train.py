"""Train a small network on many replicas: data-parallel, in numpy alone.

    poprun --num-instances 4 --num-replicas 8 python examples/train.py

Each instance makes its own part of the data, computes the gradient of each of its
local replicas, and averages them with those of all others before it moves. So all
instances take the same steps, and end with the same network and the same loss: to
the bit, and also when the same replicas are spread over more or fewer instances.
"""

import numpy as np

import popdist

SAMPLES_PER_REPLICA, INPUTS, HIDDEN = 256, 8, 32
STEPS, RATE = 60, 0.2


def make_data(replica):
    """Make the samples of one replica: other ones for each, by the same rule."""
    x = np.random.default_rng(100 + replica).normal(size=(SAMPLES_PER_REPLICA, INPUTS))
    return x, np.sin(x @ np.linspace(-1, 1, INPUTS))[:, None]


def make_weights():
    random = np.random.default_rng(7)  # the same on every instance
    return [
        random.normal(size=(INPUTS, HIDDEN)) / INPUTS**0.5,
        np.zeros(HIDDEN),
        random.normal(size=(HIDDEN, 1)) / HIDDEN**0.5,
        np.zeros(1),
    ]


def loss_and_gradients(weights, x, y):
    w1, b1, w2, b2 = weights
    hidden = np.tanh(x @ w1 + b1)
    error = hidden @ w2 + b2 - y
    d_out = 2 * error / len(x)
    d_hidden = d_out @ w2.T * (1 - hidden**2)
    gradients = [x.T @ d_hidden, d_hidden.sum(0), hidden.T @ d_out, d_out.sum(0)]
    return float((error**2).mean()), gradients


def mean_over_all_replicas(group, per_replica):
    """Average over the job what each local replica found: a list of arrays for each."""
    # For each array of the network a list with that of each local replica.
    lists = [list(arrays) for arrays in zip(*per_replica, strict=True)]
    # Every entry of a result is the mean over all replicas: one of them is enough.
    return [means[0] for means in group.grouped_all_reduce(lists, op="mean")]


def main():
    popdist.init()
    group = popdist.replica_group()
    first = popdist.getReplicaIndexOffset()
    local = range(first, first + popdist.getNumLocalReplicas())
    data = [make_data(replica) for replica in local]
    weights = make_weights()
    history = []
    for step in range(STEPS):
        found = [loss_and_gradients(weights, x, y) for x, y in data]
        means = mean_over_all_replicas(group, [[loss, *g] for loss, g in found])
        loss, *gradients = means
        weights = [w - RATE * g for w, g in zip(weights, gradients, strict=True)]
        history.append(float(loss))
        if popdist.getInstanceIndex() == 0 and step % 10 == 0:
            print(f"step {step:3}  loss {loss:.6f}", flush=True)

    last = np.array(history[-1])
    losses = popdist.instance_group().all_gather(last)
    losses = [float(loss) for loss in losses]
    if popdist.getInstanceIndex() == 0:
        print(f"loss {history[0]:.6f} at the start, {history[-1]:.6f} at the end")
    if len(set(losses)) > 1 or not history[-1] < history[0]:
        raise SystemExit(f"The instances disagree, or did not learn: {losses}")
    if popdist.getInstanceIndex() == 0:
        instances, replicas = popdist.getNumInstances(), popdist.getNumTotalReplicas()
        print(f"equal on all {instances} instances with {replicas} replicas")


if __name__ == "__main__":
    main()
