"""Tables in the host's memory, which change where programs compute gradients."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python import ipu
from tensorflow.python.ipu import embedding_ops

from tests.popdist.sdk.tensorflow_ipu.test_replicas import outputs

v1 = tf.compat.v1
SGD = embedding_ops.HostEmbeddingOptimizerSpec(0.5)
TABLE = np.arange(8, dtype=np.float32).reshape(4, 2)


def embedding(spec: Any) -> Any:
    return embedding_ops.create_host_embedding(
        "table", TABLE.shape, tf.float32, optimizer_spec=spec, initializer=TABLE
    )


def train(spec: Any, batches: list[list[int]]) -> tuple[Any, Any]:
    """Return the loss in each batch, and the table after the last one.

    The loss is the sum of squares of the rows, so a row's gradient is twice the row.
    """
    table = embedding(spec)
    dataset = tf.data.Dataset.from_tensor_slices(np.array(batches, np.int32))
    queue = ipu.ipu_infeed_queue.IPUInfeedQueue(dataset)
    losses = ipu.ipu_outfeed_queue.IPUOutfeedQueue()

    def body(indices: Any) -> Any:
        other = v1.get_variable("w", initializer=1.0, use_resource=True)
        loss = tf.reduce_sum(table.lookup(indices) ** 2) + 0 * other
        minimized = v1.train.GradientDescentOptimizer(1.0).minimize(loss)
        return losses.enqueue(loss), minimized

    with ipu.scopes.ipu_scope("/device:IPU:0"):
        program = ipu.ipu_compiler.compile(
            lambda: ipu.loops.repeat(len(batches), body, [], queue)
        )
    dequeued = losses.dequeue()
    with v1.Session() as session:
        session.run([queue.initializer, v1.global_variables_initializer()])
        with table.register(session) as registered:
            assert registered is table
            session.run(program)
        return session.run([dequeued, table.get_embedding_tensor()])


def test_each_batch_changes_its_rows_by_gradient_descent(graph: tf.Graph) -> None:
    losses, table = train(SGD, [[1, 1], [3, 1]])

    # Twice the row 1 of (2, 3) is subtracted: the factors are 2, 0.5 and two lookups.
    assert losses.tolist() == [2 * 13, 36 + 49 + 13]
    assert table.tolist() == [[0, 1], [0, 0], [4, 5], [0, 0]]


def test_sums_of_gradients_change_rows_after_several_batches(graph: tf.Graph) -> None:
    spec = embedding_ops.HostEmbeddingSGDGAOptimizerSpec(0.25, 2)
    losses, table = train(spec, [[1], [1], [3]])

    assert losses.tolist() == [13, 13, 85]
    assert table.tolist() == [[0, 1], [0, 0], [4, 5], [6, 7]]


@pytest.mark.parametrize("spec", [None, embedding_ops.HostEmbeddingOptimizerSpec(0.0)])
def test_without_a_rate_the_table_stays(spec: Any, graph: tf.Graph) -> None:
    losses, table = train(spec, [[1], [1]])

    assert losses.tolist() == [13, 13]
    assert table.tolist() == TABLE.tolist()
    assert [x.op.name for x in v1.trainable_variables()] == ["w"]


def test_numbers_beyond_the_table_stand_for_its_ends() -> None:
    rows = embedding(None).lookup(tf.constant([[-1], [9]]))

    assert rows.numpy().tolist() == [[[0, 1]], [[6, 7]]]


def test_a_table_is_zero_or_initialized_by_a_function() -> None:
    create = embedding_ops.create_host_embedding
    zeros = create("zeros", [2, 1], tf.float16)
    ones = create("ones", [2, 1], np.float32, initializer=tf.ones_initializer())

    with ones.register():
        assert ones.lookup(tf.constant([1])).numpy() == [[1]]
    assert zeros.get_embedding_tensor().dtype == tf.float16
    assert zeros.get_embedding_tensor().numpy().tolist() == [[0], [0]]


REPLICAS = """
from tensorflow.python.ipu import embedding_ops

with tf.Graph().as_default():
    spec = embedding_ops.HostEmbeddingOptimizerSpec(1.0)
    table = embedding_ops.create_host_embedding(
        "table", [4, 1], tf.float32, optimizer_spec=spec, initializer=tf.ones([4, 1])
    )
    loss = tf.reduce_sum(table.lookup(tf.constant([rank, 3])) * (1.0 + rank))
    minimized = v1.train.GradientDescentOptimizer(1.0).minimize(loss)
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        with table.register(session):
            session.run(minimized)
        print(*session.run(table.get_embedding_tensor()).ravel())
"""


def test_the_updates_of_replicas_are_summed() -> None:
    # The gradients are 1 and 2, and both replicas look up the row 3.
    assert outputs(REPLICAS) == ["0.0 -1.0 1.0 -2.0\n"] * 2


def test_arguments_that_are_not_valid_are_refused(graph: tf.Graph) -> None:
    table = tf.Variable([[1.0]])
    with pytest.raises(ValueError, match="not a variable"):
        embedding_ops.HostEmbedding("table", [[1.0]])
    with pytest.raises(ValueError, match="must be TOKEN or ENCODING"):
        embedding_ops.HostEmbedding("table", table, "ROW")
    with pytest.raises(ValueError, match="must be a HostEmbeddingOptimizerSpec or"):
        embedding_ops.HostEmbedding("table", table, optimizer_spec="SGD")
    with pytest.raises(ValueError, match="needs a session in a graph"):
        embedding(None).register()
    with pytest.raises(NotImplementedError, match="no optimizer 'Adam' of host"):
        embedding_ops.HostEmbeddingOptimizerSpec(0.1, "Adam")
