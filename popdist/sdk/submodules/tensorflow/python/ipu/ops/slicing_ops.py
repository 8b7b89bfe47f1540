"""Copies of several slices of a tensor at once."""

from typing import Any

import tensorflow as tf


def sequence_slice(
    dst: Any,
    src: Any,
    num_elems: Any,
    src_offsets: Any,
    dst_offsets: Any,
    zero_unused: bool,
) -> Any:
    """Return a tensor into which slices of another one are copied.

    Args:
        dst: The tensor, which itself stays as it is.
        src: The other one, with the same dimensions after the first.
        num_elems: How many elements of the first dimension each slice has.
        src_offsets: Where each slice begins in src.
        dst_offsets: Where each slice begins in the result.
        zero_unused: Whether the result is 0 where no slice is.
    """
    dst, src = tf.convert_to_tensor(dst), tf.convert_to_tensor(src)
    sizes, taken, put = _numbers(
        num_elems=num_elems, src_offsets=src_offsets, dst_offsets=dst_offsets
    )
    if not src.shape[1:].is_compatible_with(dst.shape[1:]):
        raise ValueError("src and dst inner shapes must match.")
    # Along the first axis gradients would be IndexedSlices.
    rows = tf.gather(
        src[tf.newaxis], tf.ragged.range(taken, taken + sizes).flat_values, axis=1
    )[0]
    places = tf.ragged.range(put, put + sizes).flat_values
    base = tf.zeros_like(dst) if zero_unused else dst
    return tf.tensor_scatter_nd_update(base, places[:, tf.newaxis], rows)


def sequence_slice_unpack(
    src: Any, num_elems: Any, src_offsets: Any, total_elements: int
) -> Any:
    """Return slices of a tensor, one behind the other; see `sequence_slice`.

    Args:
        total_elements: The sum of num_elems.
    """
    _numbers(num_elems=num_elems, src_offsets=src_offsets)
    src = tf.convert_to_tensor(src)
    shape = tf.concat([[total_elements], tf.shape(src)[1:]], 0)
    dst = tf.ensure_shape(tf.zeros(shape, src.dtype), [total_elements, *src.shape[1:]])
    return sequence_slice(
        dst, src, num_elems, src_offsets, _starts(num_elems), zero_unused=True
    )


def sequence_slice_pack(
    dst: Any, src: Any, num_elems: Any, dst_offsets: Any, zero_unused: bool
) -> Any:
    """Return a tensor with copied slices, which follow each other in src.

    The arguments have the meaning that they have in `sequence_slice`.
    """
    _numbers(num_elems=num_elems, dst_offsets=dst_offsets)
    return sequence_slice(
        dst, src, num_elems, _starts(num_elems), dst_offsets, zero_unused
    )


def _numbers(**lists: Any) -> list[Any]:
    """Return lists of numbers, one for each slice, as tensors of int32.

    Raises:
        ValueError: They have no numbers, or not the same number of them.
    """
    numbers = [tf.cast(tf.convert_to_tensor(n), tf.int32) for n in lists.values()]
    count = numbers[0].shape
    if count.rank != 1 or count[0] == 0 or any(n.shape != count for n in numbers):
        *names, last = lists
        raise ValueError(
            f"{', '.join(names)} and {last} must have matching, nonzero shapes of rank "
            "1."
        )
    return numbers


def _starts(sizes: Any) -> Any:
    """Return where slices of these sizes begin, one behind the other."""
    return tf.cumsum(tf.convert_to_tensor(sizes), exclusive=True)
