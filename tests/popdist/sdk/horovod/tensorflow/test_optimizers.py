"""Tapes and optimizers whose gradients all ranks reduce."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from tests.popdist.engine.members import error_of
from tests.popdist.sdk.horovod.tensorflow.ranks import hvd, results

OPTIMIZERS = {
    "keras": keras.optimizers.SGD,
    "tf_keras": tf_keras.optimizers.SGD,
    "legacy": tf_keras.optimizers.legacy.SGD,
}


def test_a_tape_reduces_gradients_but_for_those_of_local_sources() -> None:
    def rank(me: int) -> list[Any]:
        shared, local = tf.Variable([1.0, 2.0]), tf.Variable(1.0)
        table = tf.Variable(tf.ones((3, 1)))

        def gradients(**options: Any) -> list[Any]:
            with hvd.DistributedGradientTape(tf.GradientTape(), **options) as tape:
                loss = tf.reduce_sum(shared) * (me + 1) * local
                loss += tf.reduce_sum(tf.gather(table, [me]))
            tape.register_local_source(local)
            sources = {"shared": shared, "rest": [local, table, tf.Variable(0.0)]}
            found = tape.gradient(loss, sources)
            own, rows, absent = found["rest"]
            assert absent is None
            return [
                found["shared"].numpy().tolist(),
                own.numpy(),
                tf.convert_to_tensor(rows).numpy().tolist(),
                isinstance(rows, tf.IndexedSlices),
            ]

        return [
            gradients(),
            gradients(op=hvd.Sum, scale_local_gradients=False),
            gradients(sparse_as_dense=True, gradient_predivide_factor=2.0),
            gradients(compression=hvd.Compression.fp16, num_groups=2),
        ]

    for me, found in enumerate(results(2, rank)):
        own = 3.0 * (me + 1)
        average = [[1.5, 1.5], own / 2, [[0.5], [0.5], [0.0]]]
        assert found == [
            [*average, True],
            [[3.0, 3.0], own, [[1.0], [1.0], [0.0]], True],
            [*average, False],
            [*average, True],
        ]


def test_a_tape_tells_local_sources_from_the_other_ones() -> None:
    def rank(me: int) -> list[Any]:
        shared, local = tf.Variable(1.0), tf.Variable(1.0)
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = shared * (me + 1) + local * (me + 3)
        tape.register_local_source(local)
        own, others = tape.get_local_and_global_gradients(loss, [shared, local])
        assert own[0][0] is local
        assert others[0][0] is shared
        return [len(own), float(own[0][1]), len(others), float(others[0][1])]

    assert results(2, rank) == [[1, 1.5, 1, 1.5], [1, 2.0, 1, 1.5]]


def test_a_tape_takes_local_layers_as_its_eleventh_argument() -> None:
    def rank(me: int) -> list[float]:
        layer = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
        layer.build((None, 1))
        defaults = ("", "", hvd.Compression.none, False, hvd.Average, 1.0, 0, None)
        arguments = (*defaults, hvd.global_process_set, layer)
        found = []
        for scales in (True, False):
            with hvd.PartialDistributedGradientTape(
                tf.GradientTape(), *arguments, scales
            ) as tape:
                loss = tf.reduce_sum(layer(tf.constant([[me + 1.0]])))
            (gradient,) = tape.gradient(loss, layer.trainable_weights)
            found.append(float(gradient[0, 0]))
        return found

    assert results(2, rank) == [[0.5, 1.0], [1.0, 2.0]]


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_an_optimizer_reduces_what_no_tape_has_reduced(kind: str) -> None:
    def rank(me: int) -> list[Any]:
        found = []
        for op in (hvd.Average, hvd.Sum):
            for wrap in (lambda tape: tape, hvd.DistributedGradientTape):
                optimizer = hvd.DistributedOptimizer(OPTIMIZERS[kind](1.0), op=op)
                variable = tf.Variable([4.0, 8.0])
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(variable) * (me + 1)
                gradients = wrap(tape).gradient(loss, [variable])
                optimizer.apply_gradients(zip(gradients, [variable], strict=True))
                found.append(variable.numpy().tolist())
        assert type(optimizer).__name__ == "SGD"
        return found

    # A tape averages, and what it returns is not added up once more.
    average = [2.5, 6.5]
    assert results(2, rank) == [[average, average, [1.0, 5.0], average]] * 2


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_several_backward_passes_make_one_step(kind: str) -> None:
    def rank(me: int) -> list[Any]:
        found = []
        for traced, average in ((False, False), (True, True)):
            optimizer = hvd.DistributedOptimizer(
                OPTIMIZERS[kind](1.0),
                backward_passes_per_step=2,
                average_aggregated_gradients=average,
            )
            variable = tf.Variable([4.0, 8.0])
            assert int(optimizer.iterations.numpy()) == 0

            def step(
                factor: Any, optimizer: Any = optimizer, variable: Any = variable
            ) -> None:
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(variable) * factor
                gradients = tape.gradient(loss, [variable])
                optimizer.apply_gradients(zip(gradients, [variable], strict=True))

            run = tf.function(step) if traced else step
            for passed in range(5):
                run(tf.constant(me + 1.0 + passed % 2))
                found.append(float(variable.numpy()[0]))
            assert int(optimizer.iterations.numpy()) == 5
            # By the name that Horovod gives it.
            assert int(optimizer._agg_helper.counter.numpy()) == 1
        return found

    # Ranks add 1 + 2 and 2 + 3, 4 on average.
    sums = [4.0, 0.0, 0.0, -4.0, -4.0]
    averages = [4.0, 2.0, 2.0, 0.0, 0.0]
    assert results(2, rank) == [[*sums, *averages]] * 2


def test_a_step_without_gradients_is_what_it_is_without_horovod() -> None:
    empty_error = "ValueError: No variables provided"
    none_error = "ValueError: No gradients provided for any variable"
    kinds = {
        "tf_keras": OPTIMIZERS["tf_keras"],
        "legacy": OPTIMIZERS["legacy"],
        "v1": tf.compat.v1.train.GradientDescentOptimizer,
    }
    options: list[dict[str, Any]] = [{}, {"backward_passes_per_step": 2}]

    def outcome(call: Callable[[], object]) -> str:
        try:
            call()
        except ValueError as error:
            return f"ValueError: {error}"[: len(none_error)].rstrip(".")
        return "done"

    def rank(_: int) -> dict[str, list[list[str]]]:
        variable = tf.Variable(1.0)

        def outcomes(optimizer: Any) -> list[str]:
            constant = lambda: tf.constant(1.0)  # noqa: E731
            return [
                outcome(lambda: optimizer.apply_gradients([])),
                outcome(lambda: optimizer.apply_gradients(zip((), (), strict=True))),
                outcome(lambda: optimizer.apply_gradients([(None, variable)])),
                outcome(lambda: optimizer.minimize(constant, var_list=[])),
                outcome(lambda: optimizer.minimize(constant, var_list=[variable])),
            ]

        found = {
            name: [
                outcomes(hvd.DistributedOptimizer(kind(1.0), **each))
                for each in options
            ]
            for name, kind in kinds.items()
        }
        adasum = hvd.DistributedOptimizer(kinds["v1"](1.0), op=hvd.Adasum)
        found["adasum"] = [outcomes(adasum)]
        return found

    of_keras = ["done", "done", none_error, "done", none_error]
    of_v1 = [empty_error, empty_error, none_error, none_error, none_error]
    assert (
        results(2, rank)
        == [
            {
                "tf_keras": [of_keras] * 2,
                "legacy": [of_keras] * 2,
                "v1": [of_v1] * 2,
                "adasum": [of_v1],
            }
        ]
        * 2
    )


@pytest.mark.parametrize("kind", ["tf_keras", "legacy"])
def test_both_names_of_the_method_that_computes_gradients_reduce_them(
    kind: str,
) -> None:
    def rank(me: int) -> list[Any]:
        optimizer = hvd.DistributedOptimizer(OPTIMIZERS[kind](1.0))
        variable = tf.Variable(4.0)
        found = []
        for compute in (optimizer.compute_gradients, optimizer._compute_gradients):
            ((gradient, of),) = compute(lambda: variable * (me + 1.0), [variable])
            found.append((float(gradient), of is variable))
        scaled = tf.constant([2.0])
        try:
            pairs = optimizer._compute_gradients(
                lambda: variable * [me + 1.0], [variable], grad_loss=scaled
            )
            found.append(float(pairs[0][0]))
        except TypeError as error:
            found.append(str(error))
        return found

    of_grad_loss = {
        "legacy": 3.0,
        "tf_keras": "grad_loss is given, but only the optimizers in "
        "tf_keras.optimizers.legacy take it. Use one of them, or scale the loss "
        "itself.",
    }
    assert results(2, rank) == [[(1.5, True), (1.5, True), of_grad_loss[kind]]] * 2


def run_session(me: int, **options: Any) -> list[Any]:
    with tf.Graph().as_default():
        start = tf.compat.v1.constant_initializer(4.0)
        variable = tf.compat.v1.get_variable("v", [2], initializer=start)
        step = tf.compat.v1.train.get_or_create_global_step()
        weights = tf.constant([[1.0, 0.0], [0.0, 3.0]][me])
        optimizer = hvd.DistributedOptimizer(
            tf.compat.v1.train.MomentumOptimizer(1.0, 0.5), **options
        )
        loss = tf.reduce_sum(variable * weights)
        train = optimizer.minimize(loss, global_step=step)
        slots = optimizer.get_slot_names()
        with tf.compat.v1.train.MonitoredTrainingSession() as session:
            for _ in range(2):
                session.run(train)
            return [session.run(variable).tolist(), int(session.run(step)), slots]


def test_an_optimizer_of_tensorflow_1_reduces_gradients_in_a_session() -> None:
    def rank(me: int) -> list[Any]:
        return [
            run_session(me),
            run_session(me, op=hvd.Sum),
            # The changes of the ranks have nothing in common, so they are added up.
            run_session(me, op=hvd.Adasum),
            run_session(me, backward_passes_per_step=2),
        ]

    slots = ["momentum"]
    assert (
        results(2, rank)
        == [
            [
                [[2.75, 0.25], 2, slots],
                [[1.5, -3.5], 2, slots],
                [[1.5, -3.5], 2, slots],
                # Each pass is counted.
                [[3.0, 1.0], 2, slots],
            ]
        ]
        * 2
    )


def test_options_that_do_not_fit_are_refused() -> None:
    def refusals(_: int) -> list[str]:
        sgd = keras.optimizers.SGD()
        descent = tf.compat.v1.train.GradientDescentOptimizer(1.0)
        twice = hvd.DistributedOptimizer(sgd)
        refused: list[tuple[Any, dict[str, Any]]] = [
            (sgd, {"op": hvd.Adasum}),
            (sgd, {"op": hvd.Max}),
            (sgd, {"backward_passes_per_step": 0}),
            (sgd, {"groups": -1}),
            (sgd, {"op": hvd.Sum, "gradient_predivide_factor": 2.0}),
            (twice, {}),
            ("sgd", {}),
            (descent, {"op": hvd.Adasum, "backward_passes_per_step": 2}),
        ]
        return [
            ": ".join(error_of(lambda o=one, k=kw: hvd.DistributedOptimizer(o, **k)))
            for one, kw in refused
        ]

    # In a fork, because it makes variables.
    (found,) = results(1, refusals)
    assert found == [
        "ValueError: op is Adasum, which Horovod does not support with Keras. Use "
        "Average or Sum, or an optimizer of tf.compat.v1.train.",
        "ValueError: op is Max, but gradients are reduced by Average, Sum or Adasum.",
        "ValueError: backward_passes_per_step is 0, but must be 1 or more.",
        "ValueError: groups is -1, but must be a number of groups, from 0, or lists of "
        "variables.",
        "ValueError: gradient_predivide_factor is 2.0 with op=Sum, but it is "
        "supported with op=Average only.",
        "ValueError: The SGD is a DistributedOptimizer already. Give the optimizer "
        "that it was made of.",
        "ValueError: The optimizer is a str, but must be one of tf.compat.v1.train or "
        "of Keras.",
        "ValueError: backward_passes_per_step is 2 with op=Adasum, but must be 1: each "
        "step combines the changes of the ranks.",
    ]


def test_losses_that_no_rank_can_scale_leave_all_weights_alone() -> None:
    def rank(me: int) -> list[Any]:
        scaled = keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(1.0), initial_scale=2.0
        )
        optimizer = hvd.DistributedOptimizer(scaled)
        variable = keras.Variable([4.0])
        optimizer.build([variable])
        # Rank 1 alone has an overflow.
        gradient = tf.constant([np.inf if me else 2.0])
        optimizer.apply([gradient], [variable])
        kept = float(variable.numpy()[0])
        optimizer.apply([tf.constant([1.0 + me])], [variable])
        return [kept, float(variable.numpy()[0])]

    # 1.5 by a scale that has become 1.
    assert results(2, rank) == [[4.0, 2.5]] * 2


SCALES_LOSS = {
    "keras": lambda inner: keras.optimizers.LossScaleOptimizer(
        inner, initial_scale=2.0
    ),
    "tf_keras": lambda inner: tf_keras.mixed_precision.LossScaleOptimizer(
        inner, initial_scale=2.0
    ),
    "legacy": lambda inner: tf_keras.mixed_precision.LossScaleOptimizer(
        inner, initial_scale=2.0
    ),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("traced", [False, True])
def test_ranks_skip_alike_where_the_loss_is_scaled_around_the_exchange(
    kind: str, traced: bool
) -> None:
    def rank(me: int) -> list[Any]:
        inner = hvd.DistributedOptimizer(OPTIMIZERS[kind](1.0), op=hvd.Sum)
        optimizer = SCALES_LOSS[kind](inner)
        variable = tf.Variable([4.0])

        def step(gradient: Any) -> None:
            # tf_keras leaves it to the program to divide by the scale.
            if kind != "keras":
                (gradient,) = optimizer.get_unscaled_gradients([gradient])
            optimizer.apply_gradients([(gradient, variable)])

        values = []
        run = tf.function(step) if traced else step
        # Rank 1 alone has an overflow, in the first step.
        for gradient in (np.inf if me else 2.0, 1.0 + me, 1.0 + me):
            run(tf.constant([gradient], tf.float32))
            values.append(float(variable.numpy()[0]))
        return values

    # The sums are 3, by a scale that has become 1.
    assert results(2, rank) == [[4.0, 1.0, -2.0]] * 2


@pytest.mark.parametrize("kind", ["tf_keras", "legacy"])
def test_gradients_that_a_minimiser_has_reduced_are_not_reduced_once_more(
    kind: str,
) -> None:
    def rank(me: int) -> float:
        inner = hvd.DistributedOptimizer(OPTIMIZERS[kind](1.0), op=hvd.Sum)
        optimizer = SCALES_LOSS[kind](inner)
        variable = tf.Variable(4.0)
        with tf.GradientTape() as tape:
            loss = variable * (me + 1.0)
        optimizer.minimize(loss, [variable], tape=tape)
        return float(variable.numpy())

    assert results(2, rank) == [1.0] * 2


def test_ranks_cannot_skip_alike_between_passes() -> None:
    def rank(_: int) -> str:
        optimizer = tf_keras.optimizers.SGD(1.0)
        inner = hvd.DistributedOptimizer(optimizer, backward_passes_per_step=2)
        scaled = tf_keras.mixed_precision.LossScaleOptimizer(inner)
        pairs = [(tf.constant(1.0), tf.Variable(1.0))]
        return error_of(lambda: scaled.apply_gradients(pairs))[1]

    assert (
        results(2, rank)
        == [
            "A LossScaleOptimizer is around a DistributedOptimizer with "
            "backward_passes_per_step=2, so that ranks would leave out different "
            "passes. Give the LossScaleOptimizer to DistributedOptimizer."
        ]
        * 2
    )


def test_gradients_are_not_left_alone_without_init() -> None:
    def rank(_: int) -> tuple[str, str]:
        hvd.shutdown()
        variable = tf.Variable(1.0)
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = variable * 2.0
        return error_of(lambda: tape.gradient(loss, variable))

    assert (
        results(2, rank)
        == [
            (
                "NotInitializedError",
                "Horovod has not been initialized; use hvd.init() before any other "
                "call of it.",
            )
        ]
        * 2
    )


def test_an_optimizer_without_gradients_says_so() -> None:
    def rank(me: int) -> list[Any]:
        optimizers = [
            hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), **options)
            for options in ({}, {"backward_passes_per_step": 2})
        ]
        return [
            error_of(lambda o=optimizer: o.apply_gradients([]))
            for optimizer in optimizers
        ]

    error = (
        "ValueError",
        "SGD.apply_gradients() got no gradients. Give it pairs of a gradient and a "
        "variable: a model without trainable variables cannot be trained.",
    )
    assert results(2, rank) == [[error, error]] * 2
