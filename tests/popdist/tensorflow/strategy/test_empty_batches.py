"""Last steps of convolutional networks, whose rows are fewer than those of others."""

import os
from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from popdist.tensorflow import PopDistStrategy
from tests.popdist.tensorflow.instances import keras_of, on_all

IMAGES = np.random.default_rng(0).normal(size=(24, 6, 6, 1)).astype(np.float32)
LABELS = IMAGES.sum((1, 2))
RATE = 0.1


def network(keras: Any) -> Any:
    keras.utils.set_random_seed(7)
    return keras.Sequential(
        [
            keras.layers.Input((6, 6, 1)),
            keras.layers.Conv2D(2, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(2, 2, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ]
    )


def trained_alone(keras: Any, steps: list[tuple[list[int], float]]) -> Any:
    """Return the weights that steps make without a strategy, in this process.

    Args:
        steps: The rows of each, and the share of their mean that is its loss.
    """
    model = network(keras)
    for rows, share in steps:
        with tf.GradientTape() as tape:
            errors = model(IMAGES[rows], training=True) - LABELS[rows]
            loss = share * tf.reduce_mean(errors**2)
        weights = [*model.trainable_variables]
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign(weight - RATE * gradient)
    return model.get_weights()


def assert_close(found: Any, expected: Any) -> None:
    for own, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("keras_version", "options"),
    [
        (3, {}),
        (3, {"steps_per_execution": 2}),
        (3, {"run_eagerly": True}),
        (2, {}),
        (2, {"run_eagerly": True}),
    ],
    ids=str,
)
def test_an_incomplete_last_step_has_the_sums_of_its_rows(
    keras_version: int, options: dict[str, Any]
) -> None:
    def program(rank: int) -> Any:
        keras = keras_of(keras_version)
        found = []
        eight = ([*range(8)], 1.0)
        # Batches of 4 leave one batch in the last step, or one row, which one replica
        # of two has, and the other one a loss of 0.
        for count, last in ((12, ([8, 9, 10, 11], 1.0)), (9, ([8], 0.5))):
            images, labels = IMAGES[:count], LABELS[:count]
            with PopDistStrategy().scope():
                model = network(keras)
                model.compile(keras.optimizers.SGD(RATE), "mse", **options)
            arguments = {"batch_size": 4, "verbose": 0}
            model.fit(images, labels, epochs=2, shuffle=False, **arguments)
            weights = model.get_weights()
            loss = model.evaluate(images, labels, **arguments)
            rows = model.predict(images, **arguments)
            alone = trained_alone(keras, 2 * [eight, last])
            found.append((weights, alone, loss, rows, model(images).numpy()))
        return found

    (found,) = on_all((2,), program)
    for weights, alone, loss, rows, outputs in found:
        assert_close(weights, alone)
        np.testing.assert_allclose(rows, outputs, rtol=1e-4, atol=1e-5)
        errors = outputs - LABELS[: len(outputs)]
        assert loss == pytest.approx(float((errors**2).mean()), rel=1e-4)


@pytest.mark.filterwarnings("ignore")
def test_tf_keras_shuffles_each_epoch_in_another_order_by_the_seed() -> None:
    def program(_: int) -> list[list[int]]:
        keras = keras_of(2)
        keras.utils.set_random_seed(7)
        batches: list[list[int]] = []

        class Model(keras.Sequential):  # type: ignore[name-defined, misc]
            def train_step(self, data: Any) -> Any:
                batches.append([int(row) for row in data[0][:, 0]])
                return super().train_step(data)

        with PopDistStrategy().scope():
            model = Model([keras.layers.Dense(1)])
            model.compile("sgd", "mse", run_eagerly=True)
        rows = np.arange(10.0)[:, None]
        # Steps of 4, 4 and 2 rows.
        model.fit(rows, rows, batch_size=2, epochs=2, verbose=0)
        return batches

    (batches,) = on_all((2,), program)

    assert [len(batch) for batch in batches] == 2 * [2, 2, 2, 2, 1, 1]
    first, second = [*chain(*batches[:6])], [*chain(*batches[6:])]
    assert sorted(first) == sorted(second) == [*range(10)]
    assert first != second


def test_instances_share_out_the_rows_of_their_own_last_steps() -> None:
    def program(rank: int) -> Any:
        images, labels = IMAGES[rank::2], LABELS[rank::2]
        with PopDistStrategy().scope():
            model = network(tf.keras)
            model.compile(tf.keras.optimizers.SGD(RATE), "mse")
        model.fit(images, labels, batch_size=4, shuffle=False, verbose=0)
        weights = model.get_weights()
        steps = [([*range(16)], 1.0), ([*range(16, 24)], 1.0)]
        return weights, trained_alone(tf.keras, steps)

    (first, alone), (second, _) = on_all((2, 2), program)
    assert_close(first, alone)
    assert_close(second, first)


def has_gradient(operation: Callable[[Any], Any]) -> bool:
    """Return whether it has one: some need oneDNN, which TensorFlow may not use."""
    x = tf.ones((1, 6, 6, 2))
    with tf.GradientTape() as tape:
        tape.watch(x)
        result = operation(x)
    try:
        tape.gradient(result, x)
    except tf.errors.InvalidArgumentError:
        return False
    return True


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("in_function", [False, True], ids=["eager", "tf.function"])
def test_operations_of_an_empty_batch_have_the_shapes_of_others(
    in_function: bool,
) -> None:
    def program(rank: int) -> Any:
        strategy = PopDistStrategy()
        kernel = tf.ones((3, 3, 2, 2))

        def two_outputs(x: Any) -> Any:
            return tf.nn.max_pool_with_argmax(x, 2, 2, "SAME")[0]

        operations = {
            "strides": lambda x: tf.nn.conv2d(x, kernel, 2, "SAME"),
            "dilations": lambda x: tf.nn.conv2d(x, kernel, 1, "SAME", dilations=2),
            "two": lambda x: tf.nn.conv2d(
                tf.nn.conv2d(x, kernel, 1, "SAME"), kernel, 1, "SAME"
            ),
            "conv3d": lambda x: tf.nn.conv3d(x[:, None], kernel[None], [1] * 5, "SAME"),
            "depthwise": lambda x: tf.nn.depthwise_conv2d(
                x, kernel, [1, 2, 2, 1], "SAME"
            ),
            "transposed": lambda x: tf.nn.conv2d_transpose(
                x, kernel, [tf.shape(x)[0], 12, 12, 2], 2
            ),
            "avg_pool": lambda x: tf.nn.avg_pool(x, 2, 2, "SAME"),
            "avg_pool3d": lambda x: tf.nn.avg_pool3d(x[:, None], 2, 2, "SAME"),
            "max_pool": lambda x: tf.nn.max_pool(x, 2, 2, "SAME"),
            "max_pool1d": lambda x: tf.nn.max_pool1d(x[:, 0], 2, 2, "SAME"),
            "max_pool3d": lambda x: tf.nn.max_pool3d(x[:, None], 2, 2, "SAME"),
            "argmax": two_outputs,
            "patches": lambda x: tf.image.extract_patches(
                x, [1, 2, 2, 1], [1, 2, 2, 1], [1, 1, 1, 1], "VALID"
            ),
        }

        if not has_gradient(operations["dilations"]):
            del operations["dilations"]

        def replica(x: Any) -> Any:
            found = {}
            for name, operation in operations.items():
                with tf.GradientTape() as tape:
                    tape.watch(x)
                    result = operation(x)
                found[name] = [
                    tf.shape(result),
                    tf.shape(tape.gradient(result, x)),
                ]
            return found

        data = tf.data.Dataset.from_tensors(tf.ones((6, 6, 2))).batch(1)
        iterator = iter(strategy.experimental_distribute_dataset(data))

        def step() -> Any:
            return strategy.run(replica, args=(next(iterator),))

        found = (tf.function(step) if in_function else step)()
        return [
            tf.nest.map_structure(lambda x: x.numpy().tolist(), each)
            for each in strategy.experimental_local_results(found)
        ]

    ((full, empty),) = on_all((2,), program)
    assert full["strides"] == [[1, 3, 3, 2], [1, 6, 6, 2]]
    assert empty == {
        name: [[0, *shape[1:]] for shape in shapes] for name, shapes in full.items()
    }


def test_kernels_have_no_gradients_of_an_empty_batch() -> None:
    operations: dict[str, Callable[[Any, Any], Any]] = {
        "conv": lambda x, kernel: tf.nn.conv2d(x, kernel, 1, "SAME"),
        "depthwise": lambda x, kernel: tf.nn.depthwise_conv2d(
            x, kernel, [1, 1, 1, 1], "SAME"
        ),
        "transposed": lambda x, kernel: tf.nn.conv2d_transpose(
            x, kernel, [tf.shape(x)[0], 12, 12, 2], 2
        ),
    }

    def program(rank: int) -> Any:
        strategy = PopDistStrategy()

        @tf.function
        def replica(x: Any) -> Any:
            kernel = tf.ones((3, 3, 2, 2))
            found = {}
            for name, operation in operations.items():
                # An operation that sets no gradient may take this memory for it.
                used = tf.print(
                    tf.fill((3, 3, 2, 2), np.nan), output_stream=f"file://{os.devnull}"
                )
                with tf.control_dependencies([used]), tf.GradientTape() as tape:
                    tape.watch(kernel)
                    result = operation(x, kernel)
                found[name] = tf.reduce_max(abs(tape.gradient(result, kernel)))
            return found

        data = tf.data.Dataset.from_tensors(tf.ones((6, 6, 2))).batch(1)
        batch = next(iter(strategy.experimental_distribute_dataset(data)))
        found = strategy.run(replica, args=(batch,))
        return [
            {name: float(value) for name, value in each.items()}
            for each in strategy.experimental_local_results(found)
        ]

    ((full, empty),) = on_all((2,), program)
    assert min(full.values()) > 0
    assert empty == dict.fromkeys(operations, 0.0)
