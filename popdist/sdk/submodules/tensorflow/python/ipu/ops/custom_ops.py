"""Operations of users, computed by the functions that are registered for them."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from popdist.sdk.custom_ops import CustomOp, CustomOpError, find_custom_op


# Any: TensorFlow's tensors have no types.
def precompiled_user_op(
    inputs: Sequence[Any],
    library_path: str,
    gp_path: str = "",
    outs: Mapping[str, Any] | None = None,
    name: str = "UserOp",
    op_name: str = "Build",
    separate_gradients: bool = False,
    inputs_with_gradients: Sequence[int] | None = None,
    attributes: str | None = None,
    gradient_attributes: str | None = None,
) -> list[Any]:
    """Return the outputs of a custom operation, from its function for the CPU.

    Args:
        inputs: The tensors that the function gets.
        library_path: The library for an IPU, which is not read: without an `op_name`,
            its file's name without the suffix is the name of the function.
        gp_path: Codelets for an IPU, which are not read.
        outs: The lists `output_types` and `output_shapes`.
        name: The scope of the operation in the graph.
        op_name: The name of the function, unless it is "Build".
        separate_gradients: Whether an IPU computes gradients one by one.
        inputs_with_gradients: The indices of the inputs that get gradients; None for
            all.
        attributes: The text that the function gets.
        gradient_attributes: The text that its backward function gets.

    Raises:
        ValueError: Attributes are no text.
        CustomOpError: There is no function, or its outputs differ from `outs`.
    """
    for key, text in (
        ("attributes", attributes),
        ("gradient_attributes", gradient_attributes),
    ):
        if text and not isinstance(text, str):
            raise ValueError(
                f"Expected {key} to be a 'str' type, but was {type(text)}."
            )
    if op_name in ("Build", "Callback"):
        op_name = os.path.basename(library_path).split(".")[0]
    operator = find_custom_op(op_name, PROVIDED)
    if inputs_with_gradients is None:
        inputs_with_gradients = range(len(inputs))
    with tf.name_scope(name):
        tensors = [
            tensor if index in inputs_with_gradients else tf.stop_gradient(tensor)
            for index, tensor in enumerate(map(tf.convert_to_tensor, inputs))
        ]
        if operator.backward is None:
            outputs = operator.outputs(tensors, attributes or "")
        else:
            compute = _differentiated(operator, attributes, gradient_attributes)
            outputs = compute(*tensors)
        return _checked(op_name, outputs, outs or {})


def cpu_user_op(
    inputs: Sequence[Any],
    library_path: str,
    outs: Mapping[str, Any] | None = None,
    name: str = "UserOp",
    op_name: str = "Callback",
    **arguments: Any,
) -> list[Any]:
    """Return the outputs of a custom operation that a program runs on the CPU.

    It takes the same arguments as precompiled_user_op().
    """
    return precompiled_user_op(
        inputs, library_path, outs=outs, name=name, op_name=op_name, **arguments
    )


def codelet_expression_op(vertex_expression: Callable[..., Any], *args: Any) -> Any:
    """Return the value of an expression, which is applied to the tensors."""
    return vertex_expression(*args)


def _differentiated(
    operator: CustomOp, attributes: str | None, gradient_attributes: str | None
) -> Callable[..., list[Any]]:
    """Return the function of an operation, with its backward function as gradient."""

    def compute(*inputs: Any) -> Any:
        outputs = operator.outputs(inputs, attributes or "")

        def backward(*gradients: Any) -> list[Any]:
            return operator.gradients(
                gradients, inputs, outputs, gradient_attributes or ""
            )

        return outputs, backward

    differentiated: Callable[..., list[Any]] = tf.custom_gradient(compute)
    return differentiated


def _checked(name: str, outputs: Sequence[Any], outs: Mapping[str, Any]) -> list[Any]:
    """Return the outputs, if they are what the program says."""
    shapes, types = outs.get("output_shapes", ()), outs.get("output_types", ())
    if len(shapes) != len(types):
        raise CustomOpError(
            f"`outs` of the custom operation {name} has {len(shapes)} output_shapes, "
            f"but {len(types)} output_types. Give one of each for each output."
        )
    specs = [tf.TensorSpec(*each) for each in zip(shapes, types, strict=True)]
    tensors = [tf.convert_to_tensor(output) for output in outputs]
    if len(tensors) != len(specs) or not all(
        spec.is_compatible_with(tensor)
        for spec, tensor in zip(specs, tensors, strict=True)
    ):
        raise CustomOpError(
            f"The function of the custom operation {name} returned outputs of "
            f"{_layouts(tensors)}, but `outs` has {_layouts(specs)}. Make them the "
            "same."
        )
    return [
        tf.ensure_shape(tensor, spec.shape)
        for tensor, spec in zip(tensors, specs, strict=True)
    ]


def _layouts(values: Sequence[Any]) -> str:
    texts = [f"{value.dtype.name}{value.shape}" for value in values]
    return ", ".join(texts) or "nothing"


def _grouped_rows(inputs: Sequence[Any], attributes: str) -> Any:
    """Gather rows of tables, or scatter rows into them, one table for each group.

    The attributes are the version v0, the operation, float or half, and four sizes:
    the groups, the rows of a table, their length, and how many are looked up.
    """
    version, operation, _, *numbers = attributes.split()
    rows, indices = inputs
    if version != "v0" or operation not in ("gather", *_SEGMENTS) or len(numbers) != 4:
        raise CustomOpError(
            f"The attributes of custom_grouped_gather_scatter are {attributes!r}, but "
            "must be v0, one of gather, "
            f"{', '.join(_SEGMENTS)}, then float or half, and four sizes."
        )
    if operation == "gather":
        return tf.gather(rows, indices, batch_dims=1, axis=1)
    groups, table_rows, length, lookups = map(int, numbers)
    # One table of all groups.
    places = indices + table_rows * tf.range(groups)[:, None]
    scattered = _SEGMENTS[operation](
        tf.reshape(rows, [groups * lookups, length]),
        tf.reshape(places, [-1]),
        groups * table_rows,
    )
    return tf.reshape(scattered, [groups, table_rows, length])


_SEGMENTS = {
    "scatter": tf.math.unsorted_segment_sum,
    "scatter_sum": tf.math.unsorted_segment_sum,
    "scatter_max": tf.math.unsorted_segment_max,
}
# The operations of Graphcore's public examples.
PROVIDED = {
    "custom_grouped_gather_scatter": CustomOp(
        "custom_grouped_gather_scatter", _grouped_rows
    ),
}
