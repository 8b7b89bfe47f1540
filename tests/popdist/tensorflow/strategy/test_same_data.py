"""Instances that train on the same data, and those that only seem to."""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import popdist
from popdist.tensorflow import PopDistStrategy
from popdist.tensorflow.strategy import same_data
from tests.popdist.tensorflow.instances import keras_of, on_all

X = np.random.default_rng(0).normal(size=(24, 2)).astype(np.float32)
Y = X.sum(1, keepdims=True)
WARNING = (
    "All 2 instances read the same data, so each of them trains on all of it. Give "
    "each a part: dataset.shard(popdist.getNumInstances(), "
    "popdist.getInstanceIndex()), or for arrays x[popdist.getInstanceIndex()::"
    "popdist.getNumInstances()]; or call strategy.shard_datasets()."
)


def warnings_of(train: Callable[[PopDistStrategy, int], None]) -> list[list[str]]:
    """Return what the instances say while they train."""

    def program(rank: int) -> list[str]:
        said: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("popdist.tensorflow").addHandler(handler)
        train(PopDistStrategy(), rank)
        return said

    return on_all(2, program)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("keras_version", "is_dataset"), [(2, True), (3, False), (3, True)]
)
def test_instance_0_warns_once_of_the_same_data_in_fit(
    keras_version: int, is_dataset: bool
) -> None:
    def train(strategy: PopDistStrategy, rank: int) -> None:
        keras = keras_of(keras_version)
        with strategy.scope():
            model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        model.evaluate(X, Y, verbose=0)
        data = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(24).batch(4)
        for _ in range(2):
            model.fit(*([data] if is_dataset else [X, Y]), verbose=0)

    assert warnings_of(train) == [[WARNING], []]


@pytest.mark.filterwarnings("ignore")
def test_parts_of_arrays_and_equal_rows_are_no_mistake_in_fit() -> None:
    def train(strategy: PopDistStrategy, rank: int) -> None:
        keras = tf.keras

        def fit(strategy: PopDistStrategy, x: Any, y: Any, **options: Any) -> None:
            with strategy.scope():
                layers = [keras.layers.Input((2,)), keras.layers.Dense(1)]
                model = keras.Sequential(layers)
                model.compile("sgd", "mse")
            model.fit(x, y, verbose=0, **options)

        fit(strategy, X[rank::2], Y[rank::2], validation_data=(X, Y))
        fit(PopDistStrategy(), np.ones((8, 2)), Y[:8])
        sharding = PopDistStrategy()
        sharding.shard_datasets()
        fit(sharding, X, Y, batch_size=4)

    assert warnings_of(train) == [[], []]


def test_data_sets_that_a_program_distributes_are_compared() -> None:
    def files(names: list[str]) -> tf.data.Dataset:
        return tf.data.TFRecordDataset(names).batch(2)

    def slices(x: Any) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(x)

    def generator() -> Any:
        yield from (popdist.getInstanceIndex(),) * 4

    def train(strategy: PopDistStrategy, rank: int) -> None:
        spec = tf.TensorSpec((), tf.int64)
        for data in (
            slices((X, Y)).shard(popdist.getNumInstances(), rank),
            slices((X, Y)).skip(12 * rank).take(12),
            slices((X, Y)).enumerate().filter(lambda i, _: i % 2 == rank),
            slices(np.ones((8, 2))),
            slices(X[rank::2]),
            files([f"part-{rank}"]),
            tf.data.Dataset.from_tensors(X).repeat(4),
            tf.data.Dataset.from_generator(generator, output_signature=spec),
            slices(X).map(lambda x: tf.numpy_function(generator, [], tf.float32)),
        ):
            PopDistStrategy().experimental_distribute_dataset(data)
        logging.getLogger("popdist.tensorflow").warning("the same ones:")
        for data in (files(["a", "b"]), slices((X, Y)).map(lambda x, y: x).batch(2)):
            strategy = PopDistStrategy()
            for _ in range(2):
                strategy.experimental_distribute_dataset(data)

    assert warnings_of(train) == [
        ["the same ones:", WARNING, WARNING],
        ["the same ones:"],
    ]


def test_data_sets_of_large_arrays_are_not_copied_to_be_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def train(strategy: PopDistStrategy, rank: int) -> None:
        data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(2)
        strategy.experimental_distribute_dataset(data)

    nbytes = X.nbytes + Y.nbytes
    monkeypatch.setattr(same_data, "_MOST_BYTES", nbytes)
    assert warnings_of(train) == [[WARNING], []]
    monkeypatch.setattr(same_data, "_MOST_BYTES", nbytes - 1)
    assert warnings_of(train) == [[], []]
