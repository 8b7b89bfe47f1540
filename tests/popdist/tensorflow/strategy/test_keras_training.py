"""Keras's fit, evaluate and predict under PopDistStrategy and MirroredStrategy."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from popdist import collectives
from popdist.session import STATE
from popdist.tensorflow import PopDistStrategy
from tests.popdist.tensorflow.instances import keras_of, on_all

SAMPLES = np.random.default_rng(0).normal(size=(96, 6)).astype(np.float32)
LABELS = (SAMPLES.sum(1, keepdims=True) > 0).astype(np.float32)
# Of all replicas together.
BATCH = 24


def model_of(keras: Any, extra: list[Any], **options: Any) -> Any:
    model = keras.Sequential(
        [
            keras.layers.Input((6,)),
            keras.layers.Dense(8, activation="relu"),
            *extra,
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile(
        keras.optimizers.Adam(0.05),
        "binary_crossentropy",
        metrics=["accuracy"],
        **options,
    )
    return model


def batches_of(first: int, local: int, replicas: int) -> tf.data.Dataset:
    """Return the batches of some of the replicas, one behind the other."""
    size = BATCH // replicas
    rows = np.arange(96).reshape(-1, replicas, size)[:, first : first + local]
    rows = rows.reshape(-1)
    return tf.data.Dataset.from_tensor_slices((SAMPLES[rows], LABELS[rows])).batch(size)


def trained(model: Any, data: tf.data.Dataset) -> Any:
    """Return the history, the evaluation, the rows of a prediction, and the weights."""
    history = model.fit(data, epochs=2, verbose=0, shuffle=False).history
    scores = model.evaluate(data, verbose=0, return_dict=True)
    rows = len(model.predict(data, verbose=0))
    return history, scores, rows, [w.tolist() for w in model.get_weights()]


def mirrored(keras_version: int, replicas: int) -> Any:
    def program(_: int) -> Any:
        cpu = tf.config.list_physical_devices("CPU")[0]
        devices = [tf.config.LogicalDeviceConfiguration()] * replicas
        tf.config.set_logical_device_configuration(cpu, devices)
        names = [f"/cpu:{number}" for number in range(replicas)]
        keras = keras_of(keras_version)
        keras.utils.set_random_seed(7)
        with tf.distribute.MirroredStrategy(names).scope():
            model = model_of(keras, [])
        data = tf.data.Dataset.from_tensor_slices((SAMPLES, LABELS)).batch(BATCH)
        return trained(model, data)

    return on_all(1, program)[0]


def popdist(
    keras_version: int,
    rows: tuple[int, ...],
    extra: Callable[[Any], list[Any]] = lambda _: [],
    **options: Any,
) -> list[Any]:
    def program(rank: int) -> Any:
        keras = keras_of(keras_version)
        keras.utils.set_random_seed(7 + rank)
        with PopDistStrategy().scope():
            model = model_of(keras, extra(keras), **options)
        place = STATE.job.instance
        data = batches_of(place.replica_index_offset, rows[rank], sum(rows))
        return trained(model, data)

    return on_all(rows, program)


def assert_close(found: Any, expected: Any) -> None:
    tf.nest.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-6),
        found,
        expected,
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("keras_version", [2, 3])
def test_a_model_ends_like_that_of_mirrored_strategy_with_the_same_bits_in_each_split(
    keras_version: int,
) -> None:
    history, scores, rows, weights = mirrored(keras_version, 2)
    assert rows == 96
    (alone,) = popdist(keras_version, (2,))
    split = popdist(keras_version, (1, 1))

    for found in (alone, *split):
        assert_close(found[0], history)
        assert_close(found[1], scores)
        assert_close(found[3], weights)
    assert [found[2] for found in (alone, *split)] == [96, 48, 48]
    assert split[0] == split[1]
    assert (split[0][0], split[0][3]) == (alone[0], alone[3])


@pytest.mark.filterwarnings("ignore")
def test_statistics_of_all_replicas_are_on_all_instances_in_groups_of_steps() -> None:
    def extra(keras: Any) -> list[Any]:
        return [keras.layers.BatchNormalization()]

    first, second = popdist(3, (1, 1), extra, steps_per_execution=2)
    (alone,) = popdist(3, (2,), extra)

    assert first == second
    assert_close(alone[3], first[3])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("keras_version", [2, 3])
def test_dropout_differs_between_replicas_and_is_the_same_in_every_run(
    keras_version: int,
) -> None:
    def program(rank: int) -> Any:
        keras = keras_of(keras_version)
        strategy = PopDistStrategy()
        keras.utils.set_random_seed(7 + rank)
        with strategy.scope():
            layer = keras.layers.Dropout(0.5)
        found = strategy.run(lambda: layer(tf.ones(64), training=True))
        return [
            each.numpy().tolist() for each in strategy.experimental_local_results(found)
        ]

    split = on_all((2, 1), program)
    again = on_all((1, 2), program)

    masks = [mask for instance in split for mask in instance]
    assert masks == [mask for instance in again for mask in instance]
    assert len({tuple(mask) for mask in masks}) == 3
    assert all(0 < sum(mask) < 128 for mask in masks)


@pytest.mark.filterwarnings("ignore")
def test_instance_0_alone_saves_what_all_of_them_restore(tmp_path: Path) -> None:
    def program(rank: int) -> Any:
        keras = tf.keras
        keras.utils.set_random_seed(7)
        with PopDistStrategy().scope():
            model = model_of(keras, [keras.layers.BatchNormalization()])
            other = model_of(keras, [keras.layers.BatchNormalization()])
        data = batches_of(rank, 1, 2)
        model.fit(data, verbose=0)
        checkpoint = tf.train.Checkpoint(model=model)
        if rank == 0:
            model.save_weights(tmp_path / "weights.weights.h5")
            model.save(tmp_path / "model.keras")
            model.export(tmp_path / "exported", verbose=False)
            checkpoint.write(f"{tmp_path}/checkpoint")
        collectives.barrier()
        expected = model.predict(SAMPLES, verbose=0)
        other.load_weights(tmp_path / "weights.weights.h5")
        found = [other.predict(SAMPLES, verbose=0)]
        with PopDistStrategy().scope():
            loaded = keras.models.load_model(tmp_path / "model.keras")
        found.append(loaded.predict(SAMPLES, verbose=0))
        for variable in model.trainable_variables:
            variable.assign(variable * 0)
        checkpoint.read(f"{tmp_path}/checkpoint").assert_existing_objects_matched()
        found.append(model.predict(SAMPLES, verbose=0))
        exported = tf.saved_model.load(f"{tmp_path}/exported")
        found.append(exported.serve(SAMPLES).numpy())
        return [np.allclose(each, expected, atol=1e-6) for each in found]

    assert on_all(2, program) == [[True] * 4] * 2


def steps_until(count: int) -> tf.data.Dataset:
    """Return batches of one sample, whose number TensorFlow does not know."""

    def samples() -> Any:
        for index in range(count):
            yield SAMPLES[index], LABELS[index]

    specs = (tf.TensorSpec((6,)), tf.TensorSpec((1,)))
    data = tf.data.Dataset.from_generator(samples, output_signature=specs)
    return data.batch(1)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("keras_version", "rows", "options"),
    [
        (2, (2, 1), {}),
        (3, (1, 1), {}),
        (3, (2, 1), {"steps_per_execution": 2}),
        (3, (2, 1), {"run_eagerly": True}),
    ],
    ids=str,
)
def test_epochs_end_with_the_first_instance_whose_data_does(
    keras_version: int, rows: tuple[int, ...], options: dict[str, Any]
) -> None:
    def program(rank: int) -> Any:
        keras = keras_of(keras_version)
        with PopDistStrategy().scope():
            model = model_of(keras, [keras.layers.BatchNormalization()], **options)
        data = steps_until([5, 4][rank])
        model.fit(data, epochs=2, verbose=0)
        scores = model.evaluate(data, verbose=0)
        steps = int(tf.convert_to_tensor(model.optimizer.iterations))
        weights = [weight.tolist() for weight in model.get_weights()]
        return steps, scores, weights

    first, second = on_all(rows, program)
    # Two local replicas take five samples in three steps.
    assert first[0] == (8 if rows == (1, 1) else 6)
    assert first == second
    assert all(np.isfinite(weight).all() for weight in first[2])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("keras_version", [2, 3])
def test_sequences_of_batches_have_as_many_steps_as_the_shortest(
    keras_version: int,
) -> None:
    def program(rank: int) -> Any:
        keras = keras_of(keras_version)

        class Batches(keras.utils.Sequence):  # type: ignore[name-defined,misc]
            def __len__(self) -> int:
                return 7 - 2 * rank

            def __getitem__(self, index: int) -> Any:
                return SAMPLES[index : index + 1], LABELS[index : index + 1]

        with PopDistStrategy().scope():
            model = model_of(keras, [])
        model.fit(Batches(), epochs=2, verbose=0)
        steps = int(tf.convert_to_tensor(model.optimizer.iterations))
        return steps, model.evaluate(Batches(), verbose=0)

    first, second = on_all((2, 2), program)
    assert first == second
    assert first[0] == 6


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("keras_version", "rows"), [(2, (1, 2)), (3, (2,)), (3, (1, 2))], ids=str
)
def test_a_replica_without_samples_leaves_statistics_to_the_others(
    keras_version: int, rows: tuple[int, ...]
) -> None:
    def program(rank: int) -> Any:
        keras = keras_of(keras_version)
        with PopDistStrategy().scope():
            model = keras.Sequential(
                [
                    keras.layers.Input((1,)),
                    keras.layers.BatchNormalization(momentum=0.5),
                    keras.layers.Dense(1),
                ]
            )
            model.compile("sgd", "mse", metrics=["mae"])
        count = 3 if rows[rank] == 2 else 2
        values = np.array([[4.0], [8.0], [16.0]], np.float32)[:count]
        data = tf.data.Dataset.from_tensor_slices((values, values)).batch(1)
        model.fit(data, verbose=0, shuffle=False)
        scores = model.evaluate(data, verbose=0)
        mean = model.layers[0].moving_mean.numpy().tolist()
        return mean, bool(np.isfinite(scores).all()), model.get_weights()[-1].tolist()

    found = on_all(rows, program)
    assert all(each == found[0] for each in found)
    mean, finite, _ = found[0]
    assert finite
    # The mean of the replicas' batches in each step: of two or three, then of one or
    # two; a replica without samples keeps the mean of the step before.
    first = 0.5 * np.mean([4, 8] if rows == (2,) else [4, 4, 8])
    own = [0.5 * first + 0.5 * value for value in ([16] if rows == (2,) else [8, 16])]
    assert mean == pytest.approx([np.mean([*own, first])])


@pytest.mark.filterwarnings("ignore")
def test_keras_3_builds_a_model_from_first_batches_of_any_size() -> None:
    def program(rank: int) -> Any:
        keras = tf.keras
        with PopDistStrategy().scope():
            model = keras.Sequential([keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        count = 3 - rank
        data = tf.data.Dataset.from_tensor_slices((SAMPLES[:count], LABELS[:count]))
        model.fit(data.batch(2), verbose=0)
        return [weight.tolist() for weight in model.get_weights()]

    first, second = on_all((2, 1), program)
    assert first == second
