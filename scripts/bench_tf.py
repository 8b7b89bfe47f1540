"""How fast TensorFlow trains on popdist, next to its own strategies.

Starts itself below poprun, where what is compared takes turns in
one run. A step is one of SGD in a tf.function, with 8 samples for each replica, dense
layers and one thread a process. Times are medians of instance 0, in milliseconds.

- 2 instances with a replica each: PopDistStrategy next to MultiWorkerMirroredStrategy.
  Communication is what a step takes longer than one of processes that exchange nothing
  and train at the same time. The engine's own time is that of its all-reduce of arrays
  like the gradients.
- 1 instance with 2 replicas, next to MirroredStrategy on two logical CPUs.
- 2 instances with 2 replicas each, next to MultiWorkerMirroredStrategy with 2 workers
  that have a batch of 16.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from statistics import median, quantiles
from time import perf_counter, process_time
from typing import Any

import numpy as np
import tensorflow as tf

import popdist
from popdist.session import STATE
from popdist.tensorflow import PopDistStrategy

Call = Callable[[], object]
# The number of dense layers of networks, and their width.
NETWORKS = {"0.07 M, 10": (5, 118), "1.58 M, 14": (7, 475), "12.6 M, 26": (13, 984)}
BATCH = 8
PORTS = "BENCH_TF_PORTS"


def step_of(strategy: tf.distribute.Strategy, network: str, batch: int) -> Call:
    """Return a training step of a network, on all replicas of a strategy."""
    layers, width = NETWORKS[network]
    with strategy.scope():
        weights = [tf.Variable(tf.eye(width) / width) for _ in range(layers)]
        biases = [tf.Variable(tf.zeros(width)) for _ in range(layers)]
        optimizer = tf.keras.optimizers.SGD(1e-6)
        optimizer.build([*weights, *biases])
    inputs = tf.ones((batch, width))

    def replica_step() -> None:
        with tf.GradientTape() as tape:
            x = inputs
            for weight, bias in zip(weights, biases, strict=True):
                x = tf.nn.relu(x @ weight + bias)
            loss = tf.reduce_mean(tf.square(x))
        variables = [*weights, *biases]
        optimizer.apply_gradients(
            zip(tape.gradient(loss, variables), variables, strict=True)
        )

    @tf.function
    def step() -> None:
        strategy.run(replica_step)

    return step


def bare_engine(network: str) -> Call:
    """Return the engine's all-reduce of arrays like the gradients of a network."""
    layers, width = NETWORKS[network]
    shapes = [(width, width)] * layers + [(width,)] * layers
    arrays = [np.ones(shape, np.float32) for shape in shapes]
    results = [np.empty_like(array) for array in arrays]
    group = STATE.group("bench", STATE.job.members)
    return lambda: group.grouped_all_reduce(arrays, out=results)


def in_turns(calls: Mapping[str, Call], seconds: float, cpu: bool) -> dict[str, float]:
    """Return how long each call takes, in milliseconds: all instances make them.

    Args:
        cpu: Return the CPU time of the quickest tenth of the calls in its place.
    """
    clock = process_time if cpu else perf_counter
    group = STATE.group("bench", STATE.job.members)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    begun, goes_on = perf_counter(), True
    while goes_on:
        for name, call in calls.items():
            group.all_reduce(np.zeros(1))
            # The first one finds the caches as another call left them.
            call()
            start = clock()
            call()
            times[name].append(clock() - start)
        # Instance 0 decides when all have had enough.
        own = np.array([perf_counter() - begun < seconds])
        goes_on = bool(group.broadcast(own, 0)[0])
    typical = {
        name: quantiles([*took, *took], n=10)[0] if cpu else median(took)
        for name, took in times.items()
    }
    return {name: 1000 * seconds for name, seconds in typical.items()}


def show(*columns: object) -> None:
    """Print a line, on instance 0."""
    if popdist.getInstanceIndex() == 0:
        print("  ".join(f"{column!s:>14}" for column in columns), flush=True)


def workers() -> tf.distribute.Strategy:
    """Return TensorFlow's own strategy for as many workers as there are instances."""
    addresses = [f"127.0.0.1:{port}" for port in json.loads(os.environ[PORTS])]
    task = {"type": "worker", "index": popdist.getInstanceIndex()}
    os.environ["TF_CONFIG"] = json.dumps(
        {"cluster": {"worker": addresses}, "task": task}
    )
    return tf.distribute.MultiWorkerMirroredStrategy()


def bench(layout: str, seconds: float, cpu: bool) -> None:
    """Measure one layout of instances and local replicas, below poprun."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    local = popdist.getNumLocalReplicas()
    names = [f"/cpu:{number}" for number in range(local)]
    if layout == "1x2":
        peer, strategy_name = tf.distribute.MirroredStrategy(names), "Mirrored"
    else:
        peer, strategy_name = workers(), "MultiWorker"
    alone, own = tf.distribute.OneDeviceStrategy("/cpu:0"), PopDistStrategy()
    peer_batch = BATCH * popdist.getNumTotalReplicas() // peer.num_replicas_in_sync
    show(layout, "alone", "popdist", strategy_name, "engine", "x the peer's")
    for network in NETWORKS:
        took = in_turns(
            {
                "alone": step_of(alone, network, BATCH * local),
                "popdist": step_of(own, network, BATCH),
                "peer": step_of(peer, network, peer_batch),
                "engine": bare_engine(network),
            },
            seconds,
            cpu,
        )
        exchange = {name: took[name] - took["alone"] for name in ("popdist", "peer")}
        times = [f"{took[name]:.2f}" for name in ("alone", "popdist", "peer", "engine")]
        show(network, *times, f"{exchange['popdist'] / exchange['peer']:.3f}")


def start(layout: str, seconds: float, cpu: bool) -> None:
    """Start this program below poprun."""
    instances, local = map(int, layout.split("x"))
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(instances)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    replicas = ["-n", str(instances), "--num-replicas", str(instances * local)]
    program = [sys.executable, __file__, "--layout", layout, "--seconds", str(seconds)]
    program += ["--cpu"] * cpu
    subprocess.run(
        ["poprun", *replicas, *program],
        check=True,
        env={**os.environ, PORTS: json.dumps(ports), "TF_CPP_MIN_LOG_LEVEL": "3"},
    )


def main() -> None:
    """Measure all layouts, or one below poprun."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=10, help="For each network.")
    parser.add_argument("--layout", choices=["2x1", "1x2", "2x2"])
    parser.add_argument(
        "--cpu", action="store_true", help="CPU time, for a machine that is not idle."
    )
    # Any: argparse gives values of many types.
    options: Any = parser.parse_args()
    if popdist.isPopdistEnvSet():
        bench(options.layout, options.seconds, options.cpu)
        return
    for layout in [options.layout] if options.layout else ["2x1", "1x2", "2x2"]:
        start(layout, options.seconds, options.cpu)


if __name__ == "__main__":
    main()
