"""Broadcasts of variables and objects, and names that Horovod has besides calls."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.popdist.engine.members import error_of
from tests.popdist.sdk.horovod.tensorflow.ranks import hvd, results


def test_variables_become_those_of_one_rank() -> None:
    def rank(me: int) -> list[Any]:
        own = [tf.Variable([me, 1]), tf.Variable(me == 1), keras.Variable([1.0 + me])]
        hvd.broadcast_variables(own, root_rank=1)
        one = tf.Variable(float(me))
        in_function = tf.function(lambda: hvd.mpi_ops.broadcast_([one], 1))
        in_function()
        refusal = error_of(lambda: hvd.broadcast_global_variables(0))
        return [
            *[np.asarray(variable).tolist() for variable in own],
            one.numpy(),
            refusal[0],
            hvd.broadcast_variables([], 0),
        ]

    assert results(2, rank) == [[[1, 1], True, [2.0], 1.0, "RuntimeError", None]] * 2


def test_objects_are_broadcast_and_gathered() -> None:
    def rank(me: int) -> list[Any]:
        return [
            hvd.broadcast_object({"rank": me}, root_rank=1, name="one"),
            hvd.broadcast_object_fn(root_rank=0)(me),
            hvd.allgather_object("x" * me),
        ]

    assert results(2, rank) == [[{"rank": 1}, 0, ["", "x"]]] * 2


def test_a_hook_broadcasts_the_variables_of_a_session() -> None:
    def rank(me: int) -> list[float]:
        with tf.Graph().as_default():
            start = tf.compat.v1.constant_initializer(me + 1.0)
            variable = tf.compat.v1.get_variable("v", [2], initializer=start)
            hooks = [hvd.BroadcastGlobalVariablesHook(1)]
            with tf.compat.v1.train.MonitoredTrainingSession(hooks=hooks) as session:
                values: list[float] = session.run(variable).tolist()
        return values

    assert results(2, rank) == [[2.0, 2.0]] * 2


def test_statistics_of_a_batch_normalization_are_those_of_all_ranks() -> None:
    batches = [np.random.default_rng(me).random((3 + me, 2, 2)) for me in range(2)]

    def gradient_of(layer: Any, batch: Any) -> tuple[Any, Any]:
        x = tf.constant(batch, tf.float32)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, training=True)
            loss = tf.reduce_sum(y**3)
        return y.numpy(), tape.gradient(loss, x).numpy()

    def rank(me: int) -> None:
        together, alone = (
            hvd.SyncBatchNormalization(),
            keras.layers.BatchNormalization(),
        )
        found = gradient_of(together, batches[me])
        whole = gradient_of(alone, np.concatenate(batches))
        for one, all_rows in zip(found, whole, strict=True):
            np.testing.assert_allclose(one, np.split(all_rows, [3])[me], atol=1e-4)
        for one, other in zip(together.weights, alone.weights, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-6)
        # Only rank 0 infers: nothing is exchanged.
        if me == 0:
            np.testing.assert_allclose(together(batches[0]), alone(batches[0]), 1e-5)

    assert results(2, rank) == [None, None]


def test_what_does_not_exist_says_so() -> None:
    with pytest.raises(ValueError, match="SyncBatchNormalization cannot be fused"):
        hvd.SyncBatchNormalization(fused=True)
    with pytest.raises(AttributeError, match="has no attribute 'allreduces'"):
        _ = hvd.allreduces


def test_the_service_for_data_is_refused_in_words() -> None:
    with pytest.raises(
        ImportError, match=r"has no horovod\.tensorflow\.data, Horovod's service that"
    ):
        from horovod.tensorflow.data.compute_service import (  # noqa: F401
            TfDataServiceConfig,
        )


def test_functions_that_programs_import_from_horovods_utilities() -> None:
    from horovod.common.util import (
        is_version_greater_equal_than,
        num_rank_is_power_2,
        split_list,
    )

    assert split_list([1, 2, 3, 4, 5], 3) == [[1, 2], [3, 4], [5]]
    assert split_list([1], 2) == [[1], []]
    assert [num_rank_is_power_2(number) for number in (0, 1, 6, 8)] == [0, 1, 0, 1]
    assert is_version_greater_equal_than("2.21.0-rc1", "2.6.0")
    assert not is_version_greater_equal_than("2.5.3", "2.6.0")
    with pytest.raises(ValueError, match=r"'2\.6', but must be of the form major\."):
        is_version_greater_equal_than("2.21.0", "2.6")
    assert hvd.check_num_rank_power_of_2(4)
    assert not hvd.gpu_available("tensorflow")
