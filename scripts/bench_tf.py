"""How fast TensorFlow trains on popdist, next to its own strategies.

Starts itself below poprun, where the candidates take turns in one
run. A step is one of SGD in a tf.function, with 8 samples for each replica, dense
layers and one thread a process. Times are medians of instance 0, in milliseconds.

- 2 instances with a replica each: PopDistStrategy next to MultiWorkerMirroredStrategy.
  Communication is the difference to a step of processes that exchange nothing and train
  at the same time. The engine's own time is its all-reduce of arrays like the
  gradients.
- 1 instance with 2 replicas, next to MirroredStrategy on two logical CPUs.
- 2 instances with 2 replicas each, next to MultiWorkerMirroredStrategy with 2 workers
  that have a batch of 16.

It measures the same with the fit of tf_keras, because MultiWorkerMirroredStrategy
cannot train Keras 3; there, steps are timed from one end to the next. It also
measures the data of a step where the instances must agree whether all of them have
some; with 2 instances, the grouped_allreduce of 100 tensors of horovod.tensorflow
next to MultiWorkerMirroredStrategy's reduction of them, eagerly and in a tf.function;
and the import of popdist.tensorflow after TensorFlow's.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from itertools import pairwise
from statistics import median, quantiles
from time import perf_counter, process_time
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

import popdist
import popdist.sdk
from popdist.session import STATE
from popdist.tensorflow import PopDistStrategy

Call = Callable[[], object]
# The number of dense layers of networks, and their width.
NETWORKS = {"0.07 M, 10": (5, 118), "1.58 M, 14": (7, 475), "12.6 M, 26": (13, 984)}
FIT_STEPS = {"0.07 M, 10": 100, "1.58 M, 14": 50, "12.6 M, 26": 20}
# 100 tensors have from 64 to so many elements, evenly by ratio, as in bench_torch.py.
LARGEST = (1 << 10, 1 << 14, 1 << 18)
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


class StepTimes(tf_keras.callbacks.Callback):
    """Records how long each step of a fit takes, but for its first ones."""

    # Without it, Keras makes numbers of the metrics after each step.
    _supports_tf_logs = True

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock
        self.ends: list[float] = []

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        """Record the end of a step."""
        self.ends.append(self._clock())

    def times(self) -> list[float]:
        """Return how long the steps took, in seconds."""
        return [end - begin for begin, end in pairwise(self.ends[2:])]


def fit_of(
    strategy: tf.distribute.Strategy,
    network: str,
    batch: int,
    clock: Callable[[], float],
) -> Call:
    """Return the fit of a network, on all replicas of a strategy.

    Args:
        batch: The number of samples in a batch of data; PopDistStrategy takes one for
            each local replica, others divide one among all replicas.
        clock: What times its steps.
    """
    layers, width = NETWORKS[network]
    with strategy.scope():
        dense = [tf_keras.layers.Dense(width, "relu") for _ in range(layers)]
        model = tf_keras.Sequential([tf_keras.Input((width,)), *dense])
        model.compile(tf_keras.optimizers.SGD(1e-6), "mse")
    takes_several = isinstance(strategy, PopDistStrategy)
    local = popdist.getNumLocalReplicas() if takes_several else 1
    pair = tf.ones((batch, width)), tf.ones((batch, width))
    data = tf.data.Dataset.from_tensors(pair).repeat(FIT_STEPS[network] * local)
    whole = tf.data.Options()
    sharding = tf.data.experimental.AutoShardPolicy
    whole.experimental_distribute.auto_shard_policy = sharding.OFF
    data = data.with_options(whole)

    def fit() -> StepTimes:
        steps = StepTimes(clock)
        model.fit(data, verbose=0, callbacks=[steps])
        return steps

    return fit


def bare_engine(network: str) -> Call:
    """Return the engine's all-reduce of arrays like the gradients of a network."""
    layers, width = NETWORKS[network]
    shapes = [(width, width)] * layers + [(width,)] * layers
    arrays = [np.ones(shape, np.float32) for shape in shapes]
    results = [np.empty_like(array) for array in arrays]
    group = STATE.group("bench", STATE.job.members)
    return lambda: group.grouped_all_reduce(arrays, out=results)


def clock_of(cpu: bool) -> Callable[[], float]:
    """Return the clock that tells CPU time, or time."""
    return process_time if cpu else perf_counter


def in_turns(calls: Mapping[str, Call], seconds: float, cpu: bool) -> dict[str, float]:
    """Return how long each call takes, in milliseconds: all instances make them.

    Args:
        cpu: Return the CPU time of the quickest tenth of the calls in its place.
    """
    clock = clock_of(cpu)
    group = STATE.group("bench", STATE.job.members)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    begun, goes_on = perf_counter(), True
    while goes_on:
        for name, call in calls.items():
            group.all_reduce(np.zeros(1))
            # The first one finds the caches as another call left them.
            result = call()
            if isinstance(result, StepTimes):
                times[name] += result.times()
                continue
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
    share = BATCH * popdist.getNumTotalReplicas() // peer.num_replicas_in_sync
    fit_share = BATCH * popdist.getNumTotalReplicas()
    fit = partial(fit_of, clock=clock_of(cpu))
    makers: dict[str, tuple[Callable[..., Call], int]] = {
        layout: (step_of, share),
        f"{layout}, fit": (fit, fit_share),
    }
    for title, (make, peer_batch) in makers.items():
        show(title, "alone", "popdist", strategy_name, "engine", "x the peer's")
        for network in NETWORKS:
            took = in_turns(
                {
                    "alone": make(alone, network, BATCH * local),
                    "popdist": make(own, network, BATCH),
                    "peer": make(peer, network, peer_batch),
                    "engine": bare_engine(network),
                },
                seconds,
                cpu,
            )
            extra = {name: took[name] - took["alone"] for name in ("popdist", "peer")}
            times = [f"{took[name]:.2f}" for name in took]
            show(network, *times, f"{extra['popdist'] / extra['peer']:.3f}")
    bench_agreement(own, seconds, cpu)
    if layout == "2x1":
        bench_horovod(peer, seconds, cpu)


def bench_agreement(strategy: PopDistStrategy, seconds: float, cpu: bool) -> None:
    """Measure steps on data of unknown length next to steps on data of known length."""
    data = tf.data.Dataset.from_tensors(tf.ones((BATCH, 4))).repeat()
    lengths = {"known": data, "unknown": data.filter(lambda _: True)}

    def take_of(length: str) -> Call:
        dataset = lengths[length]
        iterator = iter(strategy.experimental_distribute_dataset(dataset))

        @tf.function
        def take() -> None:
            strategy.run(tf.reduce_sum, args=(next(iterator),))

        return take

    took = in_turns({length: take_of(length) for length in lengths}, seconds, cpu)
    show("a step's data", *lengths)
    show("", *[f"{took[length]:.3f}" for length in lengths])


def bench_horovod(peer: tf.distribute.Strategy, seconds: float, cpu: bool) -> None:
    """Measure horovod.tensorflow's reduction of 100 tensors next to a strategy's."""
    popdist.sdk.install()
    hvd = import_module("horovod.tensorflow")
    hvd.init()
    show("100 tensors", "", "horovod", "MultiWorker", "x the peer's")
    for largest in LARGEST:
        lengths = [round(64 * (largest / 64) ** (i / 99)) for i in range(100)]
        for how, wrap in {"eagerly": lambda call: call, "traced": tf.function}.items():
            calls = {
                name: wrap(call)
                for name, call in reductions_of(lengths, hvd, peer).items()
            }
            took = in_turns(calls, seconds, cpu)
            times = [f"{each:.2f}" for each in took.values()]
            ratio = f"{took['horovod'] / took['peer']:.3f}"
            show(f"64 to {largest}", how, *times, ratio)


def reductions_of(
    lengths: Sequence[int], hvd: Any, peer: tf.distribute.Strategy
) -> dict[str, Call]:
    """Return the reductions of tensors of these lengths that are compared."""
    tensors = [tf.ones(length) for length in lengths]

    def theirs() -> object:
        pairs = [(tensor, tensor) for tensor in tensors]
        return peer.extended.batch_reduce_to(tf.distribute.ReduceOp.SUM, pairs)

    return {
        "horovod": lambda: hvd.grouped_allreduce(tensors, op=hvd.Sum, name="bench"),
        "peer": theirs,
    }


# Two processes differ by more than what popdist takes, so one does both.
IMPORTS = """
from time import {clock} as clock
times = [clock()]
import tensorflow
times.append(clock())
import popdist.tensorflow
times.append(clock())
print(times[1] - times[0], times[2] - times[1])
"""


def bench_imports(rounds: int, cpu: bool) -> None:
    """Measure imports of popdist.tensorflow next to TensorFlow's."""
    program = IMPORTS.format(clock=clock_of(cpu).__name__)
    command = [sys.executable, "-c", program]
    outputs = [subprocess.check_output(command) for _ in range(rounds)]
    times = [[1000 * float(word) for word in output.split()] for output in outputs]
    plain, own = map(median, zip(*times, strict=True))
    print(f"import tensorflow: {plain:.0f}; popdist.tensorflow: {own:+.1f}")


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
    if not options.layout:
        bench_imports(9, options.cpu)


if __name__ == "__main__":
    main()
