"""Programs whose replicas are the instances of a job."""

import io
from contextlib import redirect_stdout

import pytest
import tensorflow as tf
from tensorflow.python import ipu

import popdist
from tests.popdist.tensorflow.instances import on_all

PROGRAM = """
import popdist
import tensorflow as tf
from tensorflow.python import ipu

v1 = tf.compat.v1
config = ipu.config.IPUConfig()
distribution = config.experimental.multi_replica_distribution
distribution.process_count = popdist.getNumInstances()
distribution.process_index = popdist.getInstanceIndex()
config.configure_ipu_system()
"""
SUMS = """
from tensorflow.python.ipu.ops.cross_replica_ops import *
total = cross_replica_sum(tf.constant([1.0, rank]))
mean = cross_replica_mean(rank * 4.0)
rows = ipu.all_to_all_op.all_gather(tf.constant([rank]))
part = ipu.reduce_scatter_op.reduce_scatter(tf.constant([1.0, 2.0, 3.0]))
print(rows.numpy().tolist(), part.numpy().tolist(), end=" ")
print(total.numpy().tolist(), float(mean), end=" ")

@tf.function(jit_compile=True)
def gradient(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = (rank + 1) * cross_replica_sum(x * x)
    return y, tape.gradient(y, x)

y, slope = gradient(tf.constant(3.0 + rank))
print(float(y), float(slope), cross_replica_sum(tf.constant(5), 1).numpy(), end=" ")

with tf.Graph().as_default():
    dataset = tf.data.Dataset.range(1 + 10 * rank, 5 + 10 * rank)
    dataset = dataset.map(lambda x: tf.cast(x, tf.float32))
    queue = ipu.ipu_infeed_queue.IPUInfeedQueue(dataset)

    def body(x):
        weight = v1.get_variable("w", initializer=0.0, use_resource=True)
        descent = v1.train.GradientDescentOptimizer(1.0)
        accumulating = ipu.optimizers.CrossReplicaGradientAccumulationOptimizerV2
        optimizer = accumulating(descent, 2)
        return optimizer.minimize(weight * cross_replica_mean(x))

    with ipu.scopes.ipu_scope("/device:IPU:0"):
        program = ipu.ipu_compiler.compile(lambda: ipu.loops.repeat(4, body, [], queue))
    with v1.Session() as session:
        session.run([queue.initializer, v1.global_variables_initializer()])
        session.run(program)
        print(*session.run(v1.global_variables()), end=" ")

ipu.config.reset_ipu_configuration()
with tf.Graph().as_default():
    x = tf.constant([1.0 + rank])
    total = cross_replica_sum(x)
    [slope] = tf.gradients(total * (rank + 1), x)
    with v1.Session() as session:
        print(*session.run(total), end=" ")
        config.configure_ipu_system()
        print(*session.run([total, slope]))
"""


def outputs(program: str) -> list[str]:
    """Return what two instances print, which are forks that have TensorFlow."""

    def instance(rank: int) -> str:
        with redirect_stdout(io.StringIO()) as out:
            exec(PROGRAM + program, {"rank": rank})
        return out.getvalue()

    return on_all(2, instance)


def test_replicas_sum_in_eager_execution_functions_and_sessions() -> None:
    found = outputs(SUMS)

    # x*x is 9 and 16; its derivative 2*x, times the factors 1 + 2 of both replicas.
    # The means of the batches are 6, 7, 8 and 9.
    assert found == [
        "[[0], [1]] [2.0, 4.0] [2.0, 1.0] 2.0 25.0 18.0 5 -30.0 1.0 [3.] [3.]\n",
        "[[0], [1]] [6.0, 0.0] [2.0, 1.0] 2.0 50.0 24.0 5 -30.0 2.0 [3.] [3.]\n",
    ]


NUMBERS = """
from tensorflow.compiler.plugin.poplar.ops import gen_poputil_ops
from popdist.tensorflow import PopDistStrategy

def numbers():
    share = gen_poputil_ops.ipu_replication_normalise(tf.constant(6.0))
    return ipu.replication_ops.replication_index(), share

print(*(value.numpy() for value in numbers()), end=" ")
ipu.config.reset_ipu_configuration()
with tf.Graph().as_default():
    late = numbers()
    with v1.Session() as session:
        print(*session.run(late), end=" ")
        config.configure_ipu_system()
        print(*session.run(late), end=" ")
strategy = PopDistStrategy()

@tf.function
def step():
    return strategy.run(numbers)

for values in step():
    print(*(value.numpy() for value in strategy.experimental_local_results(values)))
"""


def test_replicas_know_their_numbers() -> None:
    # Configured, before it is and after, and in the strategy.
    assert outputs(NUMBERS) == [
        "0 3.0 0 6.0 0 3.0 0\n3.0\n",
        "1 3.0 0 6.0 1 3.0 1\n3.0\n",
    ]


def test_replicas_of_one_instance_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(popdist, "getNumLocalReplicas", lambda: 2)
    monkeypatch.setattr(popdist, "getNumTotalReplicas", lambda: 6)
    config = ipu.config.IPUConfig()
    config.experimental.multi_replica_distribution.process_count = 3
    config.configure_ipu_system()

    with pytest.raises(NotImplementedError) as refusal:
        ipu.cross_replica_ops.cross_replica_sum(tf.constant(1.0))

    assert str(refusal.value) == (
        "popdist's stand-in for tensorflow.python.ipu has no replicas in one process: "
        "the configuration gives this program 2. Start as many instances as there are "
        "replicas (poprun --num-instances 6); the results are the same."
    )


def test_another_number_of_replicas_than_there_are_is_refused() -> None:
    for gather in (
        ipu.all_to_all_op.all_gather,
        ipu.reduce_scatter_op.reduce_scatter,
    ):
        assert len(gather(tf.constant([1.0]), replication_factor=1)) == 1
        with pytest.raises(
            ValueError, match="replication_factor is 4, but the program"
        ):
            gather(tf.constant([1.0]), replication_factor=4)


def test_replicas_can_be_summed_all_together_only() -> None:
    config = ipu.config.IPUConfig()
    config.experimental.multi_replica_distribution.process_count = 4
    config.configure_ipu_system()

    with pytest.raises(NotImplementedError, match="sums are over all 4 replicas"):
        ipu.cross_replica_ops.cross_replica_sum(tf.constant(1.0), 2)


def test_parts_for_replicas_need_a_configuration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(popdist, "getNumInstances", lambda: 2)

    for gather in (
        ipu.all_to_all_op.all_gather,
        ipu.reduce_scatter_op.reduce_scatter,
    ):
        with pytest.raises(NotImplementedError, match="before the system is config"):
            gather(tf.constant([1.0]))
