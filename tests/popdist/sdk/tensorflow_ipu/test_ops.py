import json
import logging

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python import ipu
from tensorflow.python.ipu.ipu_infeed_queue import IPUInfeedQueue

v1 = tf.compat.v1


def test_activations() -> None:
    x = tf.constant([-10.0, 0.0, 1.0, 10.0])

    np.testing.assert_allclose(ipu.nn_ops.hard_sigmoid(x), [0, 0.5, 0.7, 1])
    np.testing.assert_allclose(
        ipu.nn_ops.swish(x), [-4.5398e-4, 0, 0.731059, 9.999546], atol=1e-6
    )
    np.testing.assert_allclose(
        ipu.nn_ops.gelu(x), [0, 0, 0.841192, 10], rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(
        ipu.nn_ops.softmax(tf.constant([0.0, 0.0]), stable=True), [0.5, 0.5]
    )


def test_a_function_of_convolutions_is_called_as_it_is() -> None:
    @ipu.nn_ops.multi_conv(options={"perConvReservedTiles": "50"})
    def doubled(x: int) -> int:
        return 2 * x

    assert doubled(3) == 6
    assert ipu.nn_ops.multi_conv(lambda x: x + 1)(1) == 2
    with pytest.raises(TypeError, match="no dictionary"):
        ipu.nn_ops.multi_conv(options=["a"])


def test_an_outlined_function_is_called_as_it_is() -> None:
    @ipu.outlined_function
    def add(x: tf.Tensor) -> tf.Tensor:
        return x + 1

    assert int(add(tf.constant(1))) == 2


def test_dropout_scales_what_it_keeps() -> None:
    ones = tf.ones([1000])

    dropped = ipu.rand_ops.dropout(ones, rate=0.5).numpy()
    first, second = (ipu.rand_ops.dropout(ones, seed=[1, 2]).numpy() for _ in "ab")

    assert set(dropped) == {0.0, 2.0}
    np.testing.assert_array_equal(first, second)
    with pytest.raises(ValueError, match=r"must be in the range \[0, 1\)"):
        ipu.rand_ops.dropout(ones, rate=1.0)
    with pytest.raises(ValueError, match=r"to have a shape \[2\]"):
        ipu.rand_ops.dropout(ones, seed=[1])


@pytest.mark.parametrize(
    ("strided", "expected"),
    [
        # Groups of the channels 0 and 2, 1 and 3; and of 0 and 1, 2 and 3.
        (True, [-1, -1, 1, 1]),
        (False, [-1, 1, -1, 1]),
    ],
)
def test_groups_of_channels_are_normalised(
    strided: bool, expected: list[float]
) -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        x = tf.constant([[1.0, 2.0, 3.0, 4.0]] * 2)
        y = ipu.normalization_ops.group_norm(x, 2, strided_channel_grouping=strided)
        session.run(v1.global_variables_initializer())

        np.testing.assert_allclose(session.run(y), [expected] * 2, rtol=1e-4)
        names = [variable.name for variable in v1.trainable_variables()]
        assert sorted(names) == ["GroupNorm/beta:0", "GroupNorm/gamma:0"]


def test_layers_and_instances_are_normalised() -> None:
    image = np.arange(8, dtype=np.float32).reshape(1, 2, 4)
    with tf.Graph().as_default(), v1.Session() as session:
        layer = ipu.normalization_ops.layer_norm(image, scale=False, center=False)
        instance = ipu.normalization_ops.instance_norm(image, scope="mine")
        session.run(v1.global_variables_initializer())

        values = (image - image.mean()) / image.std()
        np.testing.assert_allclose(session.run(layer), values, rtol=1e-4)
        np.testing.assert_allclose(
            session.run(instance), [[[-1] * 4, [1] * 4]], rtol=1e-4
        )
        assert {v.name for v in v1.global_variables()} == {
            "mine/beta:0",
            "mine/gamma:0",
        }


def test_channels_that_cannot_be_grouped_are_refused() -> None:
    norm = ipu.normalization_ops.group_norm

    with pytest.raises(ValueError, match="4 channels cannot be divided into 3 groups"):
        norm(tf.ones([2, 4]), 3)
    with pytest.raises(ValueError, match="on axis 2, but must be on axis 1 or the"):
        norm(tf.ones([2, 4, 4, 4]), 2, channels_axis=2)
    for normalise in (norm, ipu.normalization_ops.instance_norm):
        with pytest.raises(ValueError, match="Axis 5 is out of bounds"):
            normalise(tf.ones([2, 4]), channels_axis=5)
        with tf.Graph().as_default():
            with pytest.raises(ValueError, match="Inputs of undefined rank"):
                normalise(v1.placeholder(tf.float32))
            with pytest.raises(ValueError, match="an undefined channel dimension: set"):
                normalise(v1.placeholder(tf.float32, [1, 3, None]))


def test_products_look_ups_and_sums_of_segments() -> None:
    a = tf.constant([[1.0, 2.0]])
    product = ipu.math_ops.serialized_matmul(a, a, 2, "b_rows", transpose_b=True)
    rows = ipu.embedding_ops.embedding_lookup(
        tf.constant([1.0, 2.0, 3.0]), [2, 0], serialization_factor=3
    )
    sums = ipu.math_ops.segment_sum([1, 2, 3], [0, 0, 2], 3)

    assert product.numpy().tolist() == [[5.0]]
    assert rows.numpy().tolist() == [3.0, 1.0]
    assert sums.numpy().tolist() == [3, 0, 3]
    with pytest.raises(ValueError, match="one of a_columns, a_rows_b_columns, b_rows"):
        ipu.math_ops.serialized_matmul(a, a, 2, "columns")


@pytest.mark.parametrize(
    ("given", "returned"),
    [(np.uint8, "float16"), (np.float16, "float16"), (np.float32, "float32")],
)
def test_images_get_a_fourth_channel(given: type, returned: str) -> None:
    image = ipu.image_ops.normalise_image(
        np.array([[255, 0, 51]], given), [0.5, 0.0, 0.0], [2.0, 1.0, 10.0], 1 / 255
    )

    assert image.dtype.name == returned
    np.testing.assert_allclose(image, [[1.0, 0.0, 2.0, 0.0]], rtol=1e-3)


def test_images_have_three_channels() -> None:
    normalise = ipu.image_ops.normalise_image
    three, two = [1.0, 2.0, 3.0], [1.0, 2.0]

    with pytest.raises(ValueError, match="has 2 channels, expected 3"):
        normalise(tf.ones([4, 2]), three, three)
    with pytest.raises(ValueError, match=r"channel_offsets must .* 3, but was \(2,\)"):
        normalise(tf.ones([4, 3]), two, three)
    with pytest.raises(ValueError, match=r"channel_scales must .* 3, but was \(2,\)"):
        normalise(tf.ones([4, 3]), three, two)
    with pytest.raises(TypeError, match="is of int32, but must be of float16, float32"):
        normalise(tf.ones([4, 3], tf.int32), three, three)


def test_operations_that_change_no_tensor() -> None:
    x = tf.constant([1, 2])

    for same in (
        ipu.internal_ops.remap(x),
        ipu.control_flow_ops.barrier([x])[0],
        ipu.replication_ops.assume_equal_across_replicas(x, inplace=True),
        ipu.pipelining_ops.recomputation_checkpoint(x),
        ipu.reduce_scatter_op.reduce_scatter(x),
        ipu.all_to_all_op.all_gather(x)[0],
    ):
        assert (same.numpy().tolist(), same.dtype) == ([1, 2], tf.int32)
    with ipu.scopes.outside_compilation_scope(), ipu.scopes.partials_type(tf.float16):
        assert int(x[1]) == 2


def test_a_tensor_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    ipu.internal_ops.print_tensor(tf.constant([1, 2]), "pair")

    assert capfd.readouterr().err == "pair [1 2]\n"


def test_a_data_set_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    dataset = tf.data.Dataset.from_tensors((np.zeros(3, np.float32), 1)).repeat()

    text = ipu.dataset_benchmark.dataset_benchmark(dataset, 2, 5)

    epochs = json.loads(text.numpy()[0].decode())["epochs"]
    assert [epoch["elements_processed"] for epoch in epochs] == [5, 5]
    assert [epoch["total_bytes_processed"] for epoch in epochs] == [80, 80]
    assert all(epoch["elements_per_second"] > 0 for epoch in epochs)
    assert capsys.readouterr().err.count("Epoch ") == 2
    with pytest.raises(ValueError, match="`number_of_epochs` to be at least 1"):
        ipu.dataset_benchmark.dataset_benchmark(dataset, 0, 5)
    with pytest.raises(TypeError, match=r"of type `tf\.data\.Dataset`"):
        ipu.dataset_benchmark.dataset_benchmark([1], 1, 5)


def test_a_data_set_without_data_is_not_measured() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        dataset = tf.data.Dataset.from_tensors(np.zeros([4, 0], np.float32)).repeat()
        measured = ipu.dataset_benchmark.dataset_benchmark(dataset, 1, 5)

        with pytest.raises(tf.errors.InvalidArgumentError, match="dimension of size 0"):
            session.run(measured)


def test_a_queue_is_measured_in_a_session() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        queue = IPUInfeedQueue(tf.data.Dataset.range(4).repeat())
        measured = ipu.dataset_benchmark.infeed_benchmark(queue, 1, 3, False)

        [epoch] = json.loads(session.run(measured)[0])["epochs"]

    assert epoch["total_bytes_processed"] == 24
    with pytest.raises(TypeError, match="of type `IPUInfeedQueue`"):
        ipu.dataset_benchmark.infeed_benchmark([1], 1, 5)


def test_a_strategy_says_that_it_has_one_replica(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = ipu.config.IPUConfig()
    config.auto_select_ipus = 16
    config.configure_ipu_system()

    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            ipu.ipu_strategy.IPUStrategy(enable_keras_extensions=False)

    assert caplog.messages == [
        "IPUStrategy trains one replica on the CPU, though the configuration selects "
        "16 IPUs. For more replicas, use PopDistStrategy under poprun."
    ]


@pytest.mark.parametrize(
    ("inputs", "levels", "absolute", "expected"),
    [
        ([0.1, 0.25, 0.3, 0.5, 1.0, 2.0], [0.25, 0.5, 1.0], False, [1, 2, 1, 2]),
        ([-3, 1, -1], [2], False, [3, 0]),
        ([-3, 1, -1], [2], True, [2, 1]),
    ],
)
@pytest.mark.parametrize("dtype", [tf.float16, tf.float32])
def test_values_are_counted_between_levels(
    inputs: list[float],
    levels: list[float],
    absolute: bool,
    expected: list[float],
    dtype: tf.DType,
) -> None:
    statistics = ipu.statistics_ops
    given = (tf.constant(inputs, dtype), tf.constant(levels, dtype), absolute)

    counts = statistics.histogram(*given)
    twice = statistics.histogram_update(counts, *given)

    assert counts.dtype == tf.float32
    assert counts.numpy().tolist() == expected
    assert twice.numpy().tolist() == [2 * number for number in expected]
    assert float(tf.reduce_sum(statistics.histogram_normalize(twice))) == 1


def test_bins_have_one_width() -> None:
    bins = ipu.statistics_ops.fixed_width_bins(tf.constant([3.0, -1.0, 0.0]), 5)

    assert bins.numpy().tolist() == [-1, 0, 1, 2, 3]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (([0.0, 0.0], [1], [1.0]), "not int32. Cast it."),
        (([0.0, 0.0], [[1.0]], [1.0]), "expects rank-1"),
        (([0.0], [1.0], [1.0]), "hist must have n.1 elements"),
        (([0], [1.0], []), "hist must be of float32 type"),
        ((0.0, [1.0], [1.0]), "expects rank-1"),
    ],
)
def test_what_cannot_be_counted_is_refused(
    arguments: tuple[object, ...], error: str
) -> None:
    with pytest.raises(ValueError, match=error):
        ipu.statistics_ops.histogram_update(*arguments)


def test_slices_are_copied_unpacked_and_packed() -> None:
    slicing = ipu.slicing_ops
    src = tf.constant([[0.0], [1.0], [2.0], [3.0]])
    full = tf.fill([5, 1], 9.0)

    with tf.GradientTape() as tape:
        tape.watch(src)
        put = slicing.sequence_slice(full, src, [2, 1], [2, 0], [0, 4], False)
        loss = tf.reduce_sum(put * put)
    zeroed = slicing.sequence_slice(full, src, [2, 1], [2, 0], [0, 4], True)
    unpacked = slicing.sequence_slice_unpack(src, [2, 1], [2, 0], 3)
    packed = slicing.sequence_slice_pack(full, unpacked, [2, 1], [3, 0], False)

    assert put.numpy().ravel().tolist() == [2, 3, 9, 9, 0]
    assert tape.gradient(loss, src).numpy().ravel().tolist() == [0, 0, 4, 6]
    assert zeroed.numpy().ravel().tolist() == [2, 3, 0, 0, 0]
    assert unpacked.numpy().ravel().tolist() == [2, 3, 0]
    assert packed.numpy().ravel().tolist() == [0, 9, 9, 2, 3]


def test_slices_that_do_not_fit_are_refused() -> None:
    src = tf.zeros([2, 3])

    with pytest.raises(ValueError, match="matching, nonzero shapes of rank 1"):
        ipu.slicing_ops.sequence_slice(src, src, [1, 1], [0], [0], False)
    with pytest.raises(
        ValueError, match="num_elems and dst_offsets must have matching"
    ):
        ipu.slicing_ops.sequence_slice_pack(src, src, [1, 1], [0], False)
    with pytest.raises(ValueError, match="inner shapes must match"):
        ipu.slicing_ops.sequence_slice(tf.zeros([2, 4]), src, [1], [0], [0], False)


def test_data_sets_of_tests_count() -> None:
    utils = ipu.test_utils

    [single] = utils.create_single_increasing_dataset(3, shape=[2]).skip(4).take(1)
    ends = list(utils.create_single_increasing_dataset(3, shape=[2], repeat=False))
    [pair] = utils.create_dual_increasing_dataset(3, dtype=np.int32).skip(2).take(1)

    assert single[0].numpy().tolist() == [1, 1]
    assert len(ends) == 3
    assert [value.shape.as_list() for value in pair] == [[1, 32, 32, 4], [1, 8]]
    assert int(pair[1][0, 0]) == 2
