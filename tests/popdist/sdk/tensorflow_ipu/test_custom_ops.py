from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python import ipu

from popdist.sdk import register_custom_op
from popdist.sdk.custom_ops import CustomOpError

user_op = ipu.custom_ops.precompiled_user_op


def outs(*layouts: tuple[Any, Any]) -> dict[str, Any]:
    return {
        "output_types": [dtype for dtype, _ in layouts],
        "output_shapes": [tf.TensorShape(shape) for _, shape in layouts],
    }


def scaled(inputs: Any, attributes: str) -> Any:
    return float(attributes) * inputs[0] * inputs[1]


@pytest.mark.parametrize("compiled", [False, True])
def test_tensorflow_differentiates_a_function(compiled: bool) -> None:
    register_custom_op("tf.Scaled", scaled)

    def run(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([x, y])
            (product,) = user_op(
                [x, y],
                "/no/library.so",
                outs=outs((tf.float32, [2])),
                op_name="tf.Scaled",
                inputs_with_gradients=[1],
                attributes="3",
            )
        return product, *tape.gradient(product, [x, y])

    function = tf.function(run, jit_compile=True) if compiled else run
    product, by_x, by_y = function(tf.constant([1.0, 2.0]), tf.constant([5.0, 7.0]))

    assert product.numpy().tolist() == [15, 42]
    assert by_x is None
    assert by_y.numpy().tolist() == [3, 6]


def test_a_backward_function_gets_its_own_attributes() -> None:
    def backward(gradients: Any, inputs: Any, outputs: Any, attributes: str) -> Any:
        assert outputs[0].shape == inputs[0].shape
        return [float(attributes) * gradients[0], None]

    register_custom_op("tf.Backward", scaled, backward)
    x, y = tf.constant([1.0]), tf.constant([2.0])

    with tf.GradientTape() as tape:
        tape.watch([x, y])
        (product,) = user_op(
            [x, y],
            "/no/library.so",
            outs=outs((tf.float32, [1])),
            op_name="tf.Backward",
            attributes="3",
            gradient_attributes="11",
        )
    by_x, by_y = tape.gradient(product, [x, y])

    assert product.numpy().tolist() == [6]
    assert by_x.numpy().tolist() == [11]
    assert by_y is None


def test_a_library_names_the_function_in_a_graph(graph: tf.Graph) -> None:
    register_custom_op("libscale", scaled)
    x = tf.compat.v1.placeholder(tf.float32, [2])

    (product,) = user_op(
        [x, x],
        "build/libscale.so",
        "codelets.gp",
        outs((tf.float32, [2])),
        "a_name",
        attributes="2",
    )

    assert product.name.startswith("a_name/")
    with tf.compat.v1.Session() as session:
        assert session.run(product, {x: [1, 3]}).tolist() == [2, 18]


def test_functions_return_what_the_program_says() -> None:
    register_custom_op("tf.Doubled", lambda inputs, _: 2 * inputs[0])
    x = tf.constant([1.0, 2.0])

    with pytest.raises(
        CustomOpError,
        match=r"tf.Doubled returned outputs of float32\(2,\), but `outs` has "
        r"float16\(3,\), int32\(\)\. Make",
    ):
        user_op(
            [x],
            "library.so",
            outs=outs((tf.float16, [3]), (tf.int32, [])),
            op_name="tf.Doubled",
        )
    with pytest.raises(CustomOpError, match="but `outs` has nothing"):
        user_op([x], "library.so", op_name="tf.Doubled")
    with pytest.raises(CustomOpError, match=r"register_custom_op\('library', function"):
        user_op([x], "library.so")
    with pytest.raises(ValueError, match="Expected attributes to be a 'str' type"):
        user_op([x], "library.so", attributes={"a": 1})  # type: ignore[arg-type]


def test_functions_on_the_cpu_and_expressions() -> None:
    register_custom_op("callbacks", lambda inputs, _: inputs[0] + 1)
    x = tf.constant([1.0, 2.0])

    (added,) = ipu.custom_ops.cpu_user_op([x], "callbacks.so", outs((tf.float32, [2])))
    product = ipu.custom_ops.codelet_expression_op(lambda a, b: a * b + a, x, added)

    assert added.numpy().tolist() == [2, 3]
    assert product.numpy().tolist() == [3, 8]


def grouped(operation: str, rows: Any, indices: Any, table_rows: int) -> Any:
    groups, lookups = indices.shape
    length = rows.shape[-1]
    shape = [groups, lookups if operation == "gather" else table_rows, length]
    kind = "half" if rows.dtype == tf.float16 else "float"
    (output,) = user_op(
        [rows, indices],
        "/a/custom_grouped_gather_scatter.so",
        attributes=f"v0 {operation} {kind} {groups} {table_rows} {length} {lookups}",
        outs=outs((rows.dtype, shape)),
    )
    return output


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_rows_are_gathered_and_scattered_in_groups(dtype: Any) -> None:
    random = np.random.default_rng(5)
    indices = random.integers(0, 4, (3, 6)).astype(np.int32)
    # No lookup of this row.
    indices[indices == 2] = 1
    table = random.standard_normal((3, 4, 2)).astype(dtype)
    rows = random.standard_normal((3, 6, 2)).astype(dtype)
    sums = np.zeros((3, 4, 2), dtype)
    largest = np.full((3, 4, 2), np.finfo(dtype).min)
    for group, row in np.ndindex(indices.shape):
        place = group, indices[group, row]
        sums[place] += rows[group, row]
        largest[place] = np.maximum(largest[place], rows[group, row])

    gathered = grouped("gather", tf.constant(table), tf.constant(indices), 4)
    scattered = [
        grouped(operation, tf.constant(rows), tf.constant(indices), 4)
        for operation in ("scatter", "scatter_sum", "scatter_max")
    ]

    expected = np.take_along_axis(table, indices[..., None], 1)
    assert np.array_equal(gathered, expected)
    for found in scattered[:2]:
        np.testing.assert_allclose(found, sums, rtol=2e-3, atol=2e-3)
    assert np.array_equal(scattered[2], largest)
    with pytest.raises(CustomOpError, match="must be v0, one of gather, scatter, sc"):
        grouped("add", tf.constant(rows), tf.constant(indices), 4)


def test_gradients_of_lookups_are_sums_of_rows() -> None:
    table = tf.constant([[[1.0], [2.0], [3.0]]])
    indices = tf.constant([[2, 0, 2]])

    with tf.GradientTape() as tape:
        tape.watch(table)
        rows = grouped("gather", table, indices, 3)
    gradient = tape.gradient(rows, table, tf.constant([[[5.0], [7.0], [11.0]]]))

    assert tf.convert_to_tensor(gradient).numpy().ravel().tolist() == [7, 0, 16]


def test_outputs_without_a_type_are_refused() -> None:
    register_custom_op("tf.Untyped", scaled)
    one = outs((tf.float32, [2]))

    with pytest.raises(CustomOpError) as refusal:
        user_op(
            [tf.ones(2), tf.ones(2)],
            "/no/library.so",
            outs={**one, "output_types": []},
            op_name="tf.Untyped",
            attributes="3",
        )

    assert str(refusal.value) == (
        "`outs` of the custom operation tf.Untyped has 1 output_shapes, but 0 "
        "output_types. Give one of each for each output."
    )
