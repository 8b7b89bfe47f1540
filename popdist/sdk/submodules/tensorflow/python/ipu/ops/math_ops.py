"""Products of matrices that an IPU computes in parts."""

from typing import Any

import tensorflow as tf

_DIMENSIONS = ("a_columns", "a_rows_b_columns", "b_rows")


def serialized_matmul(
    a: Any,
    b: Any,
    serialization_factor: int,
    serialization_dimension: str,
    transpose_a: bool = False,
    transpose_b: bool = False,
    name: str | None = None,
) -> Any:
    """Return the product of two matrices, which is computed as a whole.

    Args:
        a: The left one.
        b: The right one.
        serialization_factor: Into how many parts an IPU divides it.
        serialization_dimension: Along which dimension.
        transpose_a: Whether to transpose the left one.
        transpose_b: Whether to transpose the right one.
        name: The name of the operation.
    """
    if serialization_dimension not in _DIMENSIONS:
        raise ValueError(
            f"serialization_dimension is {serialization_dimension!r}, but must be one "
            f"of {', '.join(_DIMENSIONS)}."
        )
    return tf.matmul(a, b, transpose_a, transpose_b, name=name)


def segment_sum(
    data: Any, segment_ids: Any, num_segments: int, name: str | None = None
) -> Any:
    """Return the sums of a known number of segments of a tensor."""
    return tf.math.unsorted_segment_sum(data, segment_ids, num_segments, name)
