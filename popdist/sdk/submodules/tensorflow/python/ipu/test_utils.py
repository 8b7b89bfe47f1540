"""Data sets for tests, and decorators of tests for IPUs, which run on the CPU."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

Test = TypeVar("Test", bound=Callable[..., Any])


def skip_on_hw(test: Test) -> Test:
    """Decorate a test that runs on a model only; here it runs."""
    return test


def test_uses_ipus(
    num_ipus: int, allow_ipu_model: bool = True
) -> Callable[[Test], Test]:
    """Decorate a test that needs a number of IPUs."""
    return skip_on_hw


def test_may_use_ipus_or_model(
    num_ipus: int, func: Test | None = None
) -> Callable[[Test], Test]:
    """Decorate a test that runs on IPUs, or on a model of them."""
    return skip_on_hw


def skip_with_asan(reason: str) -> Callable[[Test], Test]:
    """Decorate a test that does not run under AddressSanitizer."""
    return skip_on_hw


def create_multi_increasing_dataset(
    value: int,
    shapes: Sequence[Sequence[int]] | None = None,
    dtypes: Sequence[Any] | None = None,
    repeat: bool = True,
) -> Any:
    """Return a data set of tensors full of 0, of 1, and so on.

    Args:
        value: How many different elements it has.
        shapes: The shapes of the tensors of an element.
        dtypes: Their types.
        repeat: Whether it begins again at its end, for ever.
    """
    shapes = shapes or [[1, 32, 32, 4], [1, 8]]
    dtypes = dtypes or [np.float32, np.float32]

    def element(number: Any) -> tuple[Any, ...]:
        return tuple(
            tf.cast(tf.fill(shape, number), dtype)
            for shape, dtype in zip(shapes, dtypes, strict=True)
        )

    data = tf.data.Dataset.range(value).map(element)
    return data.repeat() if repeat else data


def create_dual_increasing_dataset(
    value: int,
    data_shape: Sequence[int] | None = None,
    label_shape: Sequence[int] | None = None,
    dtype: Any = np.float32,
    repeat: bool = True,
) -> Any:
    """Return such a data set of pairs, of data and labels."""
    shapes = [data_shape or [1, 32, 32, 4], label_shape or [1, 8]]
    return create_multi_increasing_dataset(value, shapes, [dtype, dtype], repeat)


def create_single_increasing_dataset(
    value: int,
    shape: Sequence[int] | None = None,
    dtype: Any = np.float32,
    repeat: bool = True,
) -> Any:
    """Return such a data set of one tensor in each element."""
    shapes = [[1, 32, 32, 4] if shape is None else shape]
    return create_multi_increasing_dataset(value, shapes, [dtype], repeat)
