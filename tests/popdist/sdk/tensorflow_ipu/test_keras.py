"""Keras models and layers for IPUs."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python import ipu


@pytest.fixture(autouse=True)
def strategy() -> Iterator[ipu.ipu_strategy.IPUStrategy]:
    strategy = ipu.ipu_strategy.IPUStrategy()
    with strategy.scope():
        yield strategy


def line(**compiled: object) -> tf.keras.Model:
    """A model y = w*x, from w = 0, that is trained by steps of 1."""
    dense = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = tf.keras.Sequential([tf.keras.Input((1,)), dense])
    # The gradient of the mean of w*x is the mean of x.
    model.compile(
        tf.keras.optimizers.SGD(1.0), lambda y, wx: tf.reduce_mean(wx), **compiled
    )
    return model


def train(model: tf.keras.Model, steps: int) -> float:
    x = np.arange(1, steps + 1, dtype=np.float32)[:, None]
    model.fit(x, x, batch_size=1, shuffle=False, verbose=0)
    return float(model.get_weights()[0].item())


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, -10.0),
        ({"gradient_accumulation_reduction_method": "mean"}, -5.0),
        ({"experimental_normalize_gradients": True}, -5.0),
        ({"dtype": tf.float64}, -10.0),
    ],
)
def test_gradients_of_several_steps_are_applied_at_once(
    options: dict[str, object], expected: float
) -> None:
    model = line(steps_per_execution=4)
    model.set_gradient_accumulation_options(2, **options)

    assert train(model, 4) == expected
    assert int(model.optimizer.iterations) == 2


def test_options_may_be_set_before_a_model_is_compiled() -> None:
    model = line()
    model.set_pipelining_options(
        gradient_accumulation_steps_per_replica=4,
        device_mapping=[0, 1],
        pipeline_schedule=ipu.ops.pipelining_ops.PipelineSchedule.Grouped,
    )
    model.compile(tf.keras.optimizers.SGD(1.0), model.loss, steps_per_execution=4)

    assert train(model, 4) == -10.0
    assert int(model.optimizer.iterations) == 1


def test_gradients_are_summed_up_in_a_model_that_was_trained_without() -> None:
    model = line(steps_per_execution=4)
    assert train(model, 4) == -10.0
    model.set_gradient_accumulation_options(
        2, gradient_accumulation_reduction_method="mean"
    )

    assert train(model, 4) == -15.0
    assert int(model.optimizer.iterations) == 4 + 2


@pytest.mark.parametrize(
    "options",
    [
        {"gradient_accumulation_steps_per_replica": 4},
        {"gradient_accumulation_steps_per_replica": 1},
        {
            "gradient_accumulation_steps_per_replica": 2,
            "gradient_accumulation_reduction_method": "mean",
        },
    ],
)
def test_an_optimizer_that_sums_up_gradients_does_not_change(
    options: dict[str, object],
) -> None:
    model = line(steps_per_execution=4)
    model.set_gradient_accumulation_options(2)
    train(model, 4)
    model.set_gradient_accumulation_options(**options)

    with pytest.raises(ValueError, match="of 2 steps already, with options that"):
        train(model, 4)


def test_steps_of_one_execution_that_do_not_divide_are_refused() -> None:
    model = line(steps_per_execution=3)
    model.set_gradient_accumulation_options(2)

    with pytest.raises(ValueError, match="is 3, but must be a multiple of the 2 steps"):
        train(model, 6)


def test_options_for_a_chip_change_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    model = line()
    model.set_pipeline_stage_assignment([0])
    model.set_infeed_queue_options(prefetch_depth=2)
    model.set_outfeed_queue_options(buffer_depth=2)
    model.set_asynchronous_callbacks(True)
    model.print_pipeline_stage_assignment_summary()

    assert model.get_pipeline_stage_assignment() == [0]
    assert train(model, 2) == -3.0
    assert capsys.readouterr().out == f"{model.layers[0].name}: stage 0\n"
    model.reset_pipeline_stage_assignment()
    assert model.get_pipeline_stage_assignment() == []
    with pytest.raises(NotImplementedError, match="has no export_for_ipu_serving"):
        model.export_for_ipu_serving("folder")


def test_the_models_of_older_releases() -> None:
    inputs = tf.keras.Input((1,))
    with ipu.keras.PipelineStage(0):
        outputs = tf.keras.layers.Dense(2)(inputs)
    model = ipu.keras.Model(inputs, outputs)
    other = ipu.keras.Sequential(
        [tf.keras.layers.Dense(3)], gradient_accumulation_count=1
    )

    assert model(tf.ones([1, 1])).shape == [1, 2]
    assert other(tf.ones([1, 1])).shape == [1, 3]


def pipelined(kind: str, count: int) -> tf.keras.Model:
    """A model y = w*x in two stages, from w = 0, of an older release."""
    dense = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    if kind == "PipelineSequential":
        model = ipu.keras.PipelineSequential(
            [[tf.keras.layers.Flatten()], [dense]],
            gradient_accumulation_count=count,
            device_mapping=[0, 1],
        )
    else:
        inputs = tf.keras.Input((1,))
        with ipu.keras.PipelineStage(0):
            x = tf.keras.layers.Flatten()(inputs)
        with ipu.keras.PipelineStage(1):
            x = dense(x)
        model = ipu.keras.PipelineModel(
            inputs=inputs,
            outputs=x,
            gradient_accumulation_count=count,
            pipeline_schedule=ipu.ops.pipelining_ops.PipelineSchedule.Grouped,
        )
    model.compile(tf.keras.optimizers.SGD(1.0), lambda y, wx: tf.reduce_mean(wx))
    return model


@pytest.mark.parametrize(
    ("kind", "count", "steps", "updates", "weight"),
    [
        ("PipelineSequential", 1, 4, 4, -10.0),
        ("PipelineSequential", 2, 4, 2, -10.0),
        ("PipelineSequential", 4, 6, 1, -10.0),
        ("PipelineModel", 2, 4, 2, -10.0),
        ("PipelineModel", 4, 4, 1, -10.0),
    ],
)
def test_pipelined_models_of_older_releases_sum_up_gradients(
    kind: str, count: int, steps: int, updates: int, weight: float
) -> None:
    model = pipelined(kind, count)

    assert train(model, steps) == weight
    assert int(model.optimizer.iterations) == updates
    assert len(model.layers) == 2 + (kind == "PipelineModel")


@pytest.mark.parametrize(
    ("mistake", "error", "message"),
    [
        (
            lambda: ipu.keras.PipelineSequential([], gradient_accumulation_count=4),
            ValueError,
            "An IPU pipeline must take a non-empty list of stages",
        ),
        (
            lambda: ipu.keras.PipelineSequential([tf.keras.layers.Flatten()]),
            ValueError,
            "may only contain lists of stages, .* but stage 0 is <Flatten",
        ),
        (
            lambda: ipu.keras.PipelineSequential([[], []], device_mapping=[0]),
            ValueError,
            "device_mapping names 1 IPUs, but there are 2 stages. Name one for each",
        ),
        (
            lambda: ipu.keras.Sequential([], gradient_accumulation_cout=4),
            TypeError,
            "has no option gradient_accumulation_cout. Choose among batch_serializat",
        ),
        (
            lambda: ipu.keras.Sequential([], batch_serialization_iterations=2),
            NotImplementedError,
            "has no batch serialization: batch_serialization_iterations must be 1",
        ),
    ],
)
def test_a_mistake_in_a_model_is_explained(
    mistake: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        mistake()


def test_a_layer_may_enqueue_what_it_computes() -> None:
    queue = ipu.ipu_outfeed_queue.IPUOutfeedQueue()

    class Outfeed(tf.keras.layers.Layer):
        def call(self, inputs: tf.Tensor) -> tf.Tensor:
            queue.enqueue({"inputs": inputs})
            return inputs

    model = tf.keras.Sequential([tf.keras.Input((1,)), Outfeed()])
    model.compile("sgd", "mse")
    x = np.arange(4, dtype=np.float32)[:, None]

    model.evaluate(x, x, batch_size=2, verbose=0)

    assert queue.dequeue()["inputs"].numpy().tolist() == [[[0], [1]], [[2], [3]]]


def test_optimizers_of_keras_are_wrapped(
    strategy: ipu.ipu_strategy.IPUStrategy,
) -> None:
    weight = tf.Variable(0.0)
    mapped = ipu.keras.optimizers.MapGradientOptimizer(
        ipu.keras.optimizers.CrossReplicaOptimizer(tf.keras.optimizers.SGD(1.0)),
        lambda grad, variable: 2 * grad,
    )

    strategy.run(mapped.apply_gradients, [[(tf.constant(3.0), weight)]])

    assert weight.numpy() == -6.0
    with pytest.raises(TypeError, match="'sgd' is not a Keras optimizer"):
        ipu.keras.optimizers.CrossReplicaOptimizer("sgd")


def test_layers_normalise() -> None:
    layers = ipu.layers
    x = tf.constant([[1.0, 2.0, 3.0, 4.0]])

    for layer, expected in (
        (layers.GroupNormalization(groups=2, epsilon=0.0), [-1, -1, 1, 1]),
        (
            layers.GroupNormalization(
                groups=2, epsilon=0.0, strided_channel_grouping=False
            ),
            [-1, 1, -1, 1],
        ),
        (layers.InstanceNormalization(center=False), [0, 0, 0, 0]),
        (
            layers.LayerNormalization(epsilon=0.0, scale=False),
            [-1.341641, -0.447214, 0.447214, 1.341641],
        ),
    ):
        np.testing.assert_allclose(layer(x), [expected], rtol=1e-5, atol=1e-6)


def test_layers_compute_as_those_of_keras() -> None:
    layers = ipu.keras.layers
    x = tf.constant([[1.0, 2.0]])
    dense = layers.SerialDense(2, 2, "b_rows", kernel_initializer="ones")

    assert dense(x).numpy().tolist() == [[3.0, 3.0]]
    assert layers.RecomputationCheckpoint()(x).numpy().tolist() == [[1.0, 2.0]]
    assert layers.AssumeEqualAcrossReplicas()(x).numpy().tolist() == [[1.0, 2.0]]
    embedding = layers.Embedding(4, 3, serialization_factor=2)
    assert embedding(tf.constant([1])).shape == [1, 3]
    assert layers.LSTM(5)(tf.ones([1, 2, 3])).shape == [1, 5]
