"""Programs for TensorFlow 2: eager execution, functions and IPUStrategy."""

import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python import ipu
from tensorflow.python.ipu.ipu_infeed_queue import IPUInfeedQueue
from tensorflow.python.ipu.ipu_outfeed_queue import (
    IPUOutfeedMode,
    IPUOutfeedQueue,
    IPUOutfeedQueueIterator,
)


def test_the_submodule_is_an_attribute_of_the_installed_package() -> None:
    import tensorflow.python as package

    assert package.ipu is ipu
    assert "submodules/tensorflow/python/ipu" in ipu.__file__


def test_the_cpu_plays_the_part_of_an_ipu_in_functions() -> None:
    @tf.function(jit_compile=True)
    def add(x: tf.Tensor) -> tf.Tensor:
        with tf.device("/device:IPU:0"):
            return x + tf.numpy_function(lambda: np.float32(2), [], tf.float32)

    with tf.device("/device:IPU:0"):
        assert add(tf.constant(1.0)).numpy() == 3.0


def test_a_computation_runs_at_once_in_eager_execution() -> None:
    variable = tf.Variable(1.0)

    assert ipu.ipu_compiler.compile(lambda x: x * 2, [3.0])[0].numpy() == 6.0
    assert ipu.ipu_compiler.compile(lambda: variable.assign_add(1.0)) is not None
    assert variable.numpy() == 2.0


def test_a_strategy_runs_a_function_that_takes_and_leaves_batches() -> None:
    strategy = ipu.ipu_strategy.IPUStrategy()
    queue = IPUOutfeedQueue()
    with strategy.scope():
        weight = tf.Variable(2.0)

        @tf.function(jit_compile=True)
        def loop(iterator: tf.data.Iterator) -> None:
            for _ in tf.range(3):
                queue.enqueue({"y": weight * next(iterator)})

        dataset = tf.data.Dataset.range(6).map(lambda x: tf.cast(x, tf.float32))
        strategy.run(loop, args=[iter(dataset)])

    assert queue.dequeue()["y"].numpy().tolist() == [0.0, 2.0, 4.0]
    assert strategy.num_replicas_in_sync == 1


def test_a_queue_can_be_iterated_over() -> None:
    every, last = IPUOutfeedQueue(), IPUOutfeedQueue(outfeed_mode=IPUOutfeedMode.LAST)

    @tf.function
    def enqueue(x: tf.Tensor) -> None:
        every.enqueue((x, x + 1))
        last.enqueue(x)

    for value in (1, 2):
        enqueue(tf.constant(value))

    assert [tuple(int(x) for x in pair) for pair in every] == [(1, 2), (2, 3)]
    assert [int(x) for x in IPUOutfeedQueueIterator(last)] == [2]


def test_an_infeed_queue_begins_anew_at_its_initializer() -> None:
    queue = IPUInfeedQueue(tf.data.Dataset.range(4))

    @tf.function
    def add() -> tf.Tensor:
        total = tf.constant(0, tf.int64)
        return ipu.loops.repeat(2, lambda t, x: t + x, [total], queue)

    assert int(add()) == 1
    assert int(add()) == 5
    _ = queue.initializer
    assert int(add()) == 1


def test_keras_trains_in_the_scope_of_a_strategy() -> None:
    with ipu.ipu_strategy.IPUStrategy().scope():
        dense = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
        model = tf.keras.Sequential([tf.keras.Input((1,)), dense])
        model.compile("sgd", "mse", steps_per_execution=2)
        x = np.full((4, 1), 2.0, np.float32)

        model.fit(x, x, batch_size=1, verbose=0)
        model.evaluate(x, x, batch_size=1, verbose=0)

    np.testing.assert_array_equal(dense.kernel.numpy(), [[1.0]])
    assert dense.kernel.value.device.endswith("/device:CPU:0")


def test_a_seed_makes_the_same_numbers() -> None:
    ipu.utils.reset_ipu_seed(3)
    first = tf.random.uniform([4]).numpy()
    ipu.utils.reset_ipu_seed(3)

    np.testing.assert_array_equal(tf.random.uniform([4]).numpy(), first)


def test_a_wrong_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="'all' is not an IPUOutfeedMode"):
        IPUOutfeedQueue(outfeed_mode="all")


def test_a_queue_does_not_keep_the_graphs_that_enqueue() -> None:
    queue = IPUOutfeedQueue()

    @tf.function
    def traced() -> None:
        queue.enqueue(tf.constant(1.0))

    graph = weakref.ref(traced.get_concrete_function().graph)
    del traced
    gc.collect()

    assert graph() is None
