"""Optimizers that accumulate gradients, and pipelines."""

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python import ipu
from tensorflow.python.ipu import optimizers, pipelining_ops
from tensorflow.python.ipu.ipu_infeed_queue import IPUInfeedQueue
from tensorflow.python.ipu.ipu_outfeed_queue import IPUOutfeedQueue

v1 = tf.compat.v1
Wrap = Callable[[object], object]


def batches(count: int) -> IPUInfeedQueue:
    """1, 2, 3 and so on."""
    dataset = tf.data.Dataset.range(1, count + 1)
    return IPUInfeedQueue(dataset.map(lambda x: tf.cast(x, tf.float32)).repeat())


def weights_after(steps: int, wrap: Wrap) -> list[float]:
    """Return the weight after each step of w*x with x = 1, 2, ..., from w = 0."""
    queue, weights = batches(steps), IPUOutfeedQueue()

    def body(x: tf.Tensor) -> list[object]:
        weight = v1.get_variable("w", initializer=0.0, use_resource=True)
        train = wrap(v1.train.GradientDescentOptimizer(1.0)).minimize(weight * x)
        with tf.control_dependencies([train]):
            return [weights.enqueue(weight.read_value())]

    loop = ipu.loops.repeat(steps, body, [], queue)
    dequeue = weights.dequeue()
    with v1.Session() as session:
        session.run([queue.initializer, v1.global_variables_initializer()])
        session.run(loop)
        assert [v.name for v in v1.global_variables()] == ["w:0"]
        return list(session.run(dequeue).tolist())


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("SUM", [0, 0, -6, -6, -6, -21]),
        ("MEAN", [0, 0, -2, -2, -2, -7]),
        (2, [0, 0, -2, -2, -2, -7]),
    ],
)
def test_gradients_are_applied_once_in_several_micro_batches(
    method: object, expected: list[float]
) -> None:
    def wrap(optimizer: object) -> object:
        return optimizers.GradientAccumulationOptimizerV2(
            optimizer, 3, reduction_method=method
        )

    assert weights_after(6, wrap) == pytest.approx(expected)


@pytest.mark.usefixtures("graph")
def test_a_variable_without_a_gradient_is_left_as_it_is() -> None:
    class WithAnother:
        def __init__(self, optimizer: object) -> None:
            self.optimizer = optimizers.GradientAccumulationOptimizerV2(optimizer, 2)

        def minimize(self, loss: tf.Tensor) -> object:
            pairs = self.optimizer.compute_gradients(loss)
            return self.optimizer.apply_gradients([*pairs, (None, pairs[0][1])])

    assert weights_after(4, WithAnother) == [0, -3, -3, -10]


@pytest.mark.usefixtures("graph")
@pytest.mark.parametrize(
    "wrap",
    [
        lambda opt: optimizers.GradientAccumulationOptimizer(opt, 2),
        lambda opt: optimizers.CrossReplicaGradientAccumulationOptimizer(opt, 2),
        lambda opt: optimizers.CrossReplicaGradientAccumulationOptimizerV2(opt, 2),
    ],
)
def test_the_older_optimizers_sum_up_too(wrap: Wrap) -> None:
    assert weights_after(4, wrap) == [0, -3, -3, -10]


@pytest.mark.usefixtures("graph")
@pytest.mark.parametrize(
    ("wrap", "expected"),
    [
        (optimizers.CrossReplicaOptimizer, [-1, -3]),
        (optimizers.ShardedOptimizer, [-1, -3]),
        (lambda o: optimizers.MapGradientOptimizer(o, lambda g, v: 2 * g), [-2, -6]),
    ],
)
def test_a_wrapped_optimizer_trains(wrap: Wrap, expected: list[float]) -> None:
    assert weights_after(2, wrap) == expected


@pytest.mark.usefixtures("graph")
def test_each_sum_has_the_type_that_a_function_gives_for_its_variable() -> None:
    types = {"a": tf.float64, "b": tf.float32}
    wrapped = optimizers.GradientAccumulationOptimizerV2(
        v1.train.GradientDescentOptimizer(1.0), 2, dtype=lambda v: types[v.op.name]
    )
    a, b = (v1.get_variable(name, initializer=0.0) for name in "ab")
    wrapped.apply_gradients([(tf.constant(1.0), a), (tf.constant(1.0), b)])

    sums = v1.get_collection("accumulators_of_gradients")
    assert [sum.dtype for sum in sums] == [tf.float64, tf.float32, tf.int32]


@pytest.mark.usefixtures("loops")
def test_the_state_of_a_wrapped_optimizer_changes_once_in_several_batches() -> None:
    # Momentum 0.5: steps of 3, and of 7 + 3/2.
    def wrap(_: object) -> object:
        momentum = v1.train.MomentumOptimizer(1.0, 0.5)
        return optimizers.GradientAccumulationOptimizerV2(momentum, 2)

    queue = batches(4)

    def body(x: tf.Tensor) -> object:
        weight = v1.get_variable("w", initializer=0.0, use_resource=True)
        return wrap(None).minimize(weight * x)

    loop = ipu.loops.repeat(4, body, [], queue)
    with v1.Session() as session:
        session.run([queue.initializer, v1.global_variables_initializer()])
        session.run(loop)
        [weight, _] = session.run(v1.global_variables())
    assert weight == -11.5


@pytest.mark.usefixtures("graph")
def test_wrong_arguments_of_optimizers_are_refused() -> None:
    descent = v1.train.GradientDescentOptimizer(1.0)

    with pytest.raises(ValueError, match="num_mini_batches is 0, but must be 1 or"):
        optimizers.GradientAccumulationOptimizerV2(descent, 0)
    with pytest.raises(NotImplementedError, match="num_mini_batches of str"):
        optimizers.GradientAccumulationOptimizerV2(descent, "2")
    with pytest.raises(ValueError, match="Choose one of SUM, MEAN, RUNNING_MEAN"):
        optimizers.GradientAccumulationOptimizerV2(descent, 2, reduction_method="MAX")
    with pytest.raises(TypeError, match="wraps an optimizer of"):
        optimizers.CrossReplicaOptimizer("sgd")
    with pytest.raises(NotImplementedError, match="statistics of float16"):
        optimizers.AutomaticLossScalingOptimizer(descent)


# --- Pipelines of w * x and its square root of the loss, by hand.


def run_pipeline(steps: int, **options: object) -> tuple[list[object], float]:
    """Return what two runs of a pipeline enqueue, and the weight after them."""
    queue, outfeed = batches(4), IPUOutfeedQueue()

    def stage1(rate: tf.Tensor, x: tf.Tensor) -> tuple[tf.Tensor, ...]:
        weight = v1.get_variable("w", initializer=1.0, use_resource=True)
        return rate, weight * x, x

    def stage2(rate: tf.Tensor, y: tf.Tensor, x: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return rate, 2 * y

    def optimize(rate: tf.Tensor, loss: tf.Tensor) -> object:
        descent = v1.train.GradientDescentOptimizer(rate)
        return pipelining_ops.OptimizerFunctionOutput(descent, loss)

    rate = v1.placeholder(tf.float32, [])
    with ipu.scopes.ipu_scope("/device:IPU:0"):
        program = ipu.ipu_compiler.compile(
            lambda rate: pipelining_ops.pipeline(
                [stage1, stage2],
                2,
                repeat_count=steps,
                inputs=[rate],
                infeed_queue=queue,
                outfeed_queue=outfeed,
                optimizer_function=optimize,
                **options,
            ),
            [rate],
        )
    dequeue = outfeed.dequeue()
    with v1.Session() as session:
        session.run([queue.initializer, v1.global_variables_initializer()])
        session.run(program, {rate: 0.1})
        [weight] = session.run(v1.global_variables())
        return session.run(dequeue), float(weight)


@pytest.mark.usefixtures("loops")
def test_a_pipeline_sums_the_gradients_of_a_step() -> None:
    # The loss is 2*w*x: a gradient of 2*(1 + 2), and of 2*(3 + 4).
    losses, weight = run_pipeline(2, outfeed_loss=True)

    np.testing.assert_allclose(losses, [2, 4, 6 * 0.4, 8 * 0.4], rtol=1e-6)
    assert weight == pytest.approx(1 - 0.1 * 6 - 0.1 * 14)


@pytest.mark.usefixtures("graph")
def test_a_pipeline_enqueues_all_outputs_of_its_last_stage() -> None:
    [rates, losses], _ = run_pipeline(1)

    np.testing.assert_allclose(rates, [0.1, 0.1])
    np.testing.assert_allclose(losses, [2, 4])


@pytest.mark.usefixtures("graph")
@pytest.mark.parametrize(
    ("options", "outfed", "weight"),
    [
        ({"outfeed_loss": True, "accumulate_outfeed": True}, [6, 14 * 0.4], -1),
        ({"outfeed_loss": True, "reduction_method": "mean"}, [2, 4, 4.2, 5.6], 0),
        ({"outfeed_mask": [True, False]}, [2, 4, 2.4, 3.2], -1),
        (
            {"outfeed_loss": True, "continuous_weight_updates": True},
            [2, 4 * 0.8, 6 * 0.4, 8 * -0.2],
            -1,
        ),
        (
            {
                "outfeed_loss": True,
                "pipeline_schedule": pipelining_ops.PipelineSchedule.Sequential,
                "device_mapping": [0, 0],
                "recomputation_mode": pipelining_ops.RecomputationMode.Auto,
            },
            [2, 4, 2.4, 3.2],
            -1,
        ),
    ],
)
def test_options_of_a_pipeline_that_change_results(
    options: dict[str, object], outfed: list[float], weight: float
) -> None:
    values, after = run_pipeline(2, **options)

    np.testing.assert_allclose(values, outfed, rtol=1e-6)
    assert after == pytest.approx(weight, abs=1e-6)


@pytest.mark.usefixtures("graph")
def test_a_pipeline_without_optimizer_computes_only() -> None:
    queue, outfeed = batches(3), IPUOutfeedQueue()

    program = pipelining_ops.pipeline(
        [lambda x: x + 1, lambda x: {"y": 2 * x}],
        3,
        infeed_queue=queue,
        outfeed_queue=outfeed,
    )
    dequeue = outfeed.dequeue()

    with v1.Session() as session:
        session.run(queue.initializer)
        session.run(program)
        assert session.run(dequeue)["y"].tolist() == [4.0, 6.0, 8.0]


def test_a_keras_optimizer_trains_in_a_pipeline() -> None:
    queue, outfeed = batches(4), IPUOutfeedQueue()
    weight = tf.Variable(1.0)
    descent = tf.keras.optimizers.SGD(0.1)

    @tf.function
    def train() -> None:
        pipelining_ops.pipeline(
            [lambda x: weight * x, lambda y: 2 * y],
            2,
            repeat_count=2,
            infeed_queue=queue,
            outfeed_queue=outfeed,
            optimizer_function=lambda loss: pipelining_ops.OptimizerFunctionOutput(
                descent, loss
            ),
        )

    train()

    np.testing.assert_allclose(outfeed.dequeue(), [2, 4, 2.4, 3.2], rtol=1e-6)
    assert weight.numpy() == pytest.approx(-1)


@pytest.mark.usefixtures("graph")
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, NotImplementedError, "gradient_accumulation_count of NoneType"),
        (
            {"gradient_accumulation_count": 2, "device_mapping": [0]},
            ValueError,
            "device_mapping names 1 IPUs, but there are 2 stages",
        ),
        (
            {"gradient_accumulation_count": 2, "outfeed_loss": True},
            ValueError,
            "An optimizer_function must be provided",
        ),
        (
            {"gradient_accumulation_count": 2, "batch_serialization_iterations": 2},
            NotImplementedError,
            "batch_serialization_iterations must be 1",
        ),
        ({"pipeline_depth": 2}, ValueError, "but there is no outfeed_queue"),
    ],
)
def test_wrong_options_of_a_pipeline_are_refused(
    options: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        pipelining_ops.pipeline(
            [lambda x: x, lambda x: x], inputs=[tf.constant(1.0)], **options
        )


@pytest.mark.usefixtures("graph")
def test_what_an_optimizer_function_returns_is_checked() -> None:
    descent = v1.train.GradientDescentOptimizer(1.0)

    with pytest.raises(TypeError, match="opt must be a TensorFlow Optimizer"):
        pipelining_ops.OptimizerFunctionOutput("sgd", tf.constant(1.0))
    with pytest.raises(TypeError, match="loss must be a TensorFlow Tensor"):
        pipelining_ops.OptimizerFunctionOutput(descent, 1.0)
    with pytest.raises(TypeError, match="matmul_options must be a dictionary"):
        pipelining_ops.PipelineStageOptions(matmul_options=["a"])


@pytest.mark.usefixtures("graph")
def test_options_of_a_pipeline_that_are_not_given_are_empty() -> None:
    descent = v1.train.GradientDescentOptimizer(1.0)
    output = pipelining_ops.OptimizerFunctionOutput(descent, tf.constant(1.0))
    stage = pipelining_ops.PipelineStageOptions(matmul_options={"a": "b"})

    assert (output.compute_gradients_args, output.apply_gradients_kwargs) == ((), {})
    assert (stage.convolution_options, stage.matmul_options) == ({}, {"a": "b"})
    # Programs keep them in sets, by identity.
    assert len({output, stage, pipelining_ops.PipelineStageOptions()}) == 3
