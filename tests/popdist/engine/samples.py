"""Arrays with everything in them that can go wrong, and how to compare them."""

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOATS = [np.dtype(name) for name in ("float32", "float64", "float16")] + [BFLOAT16]
INTEGERS = [
    np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)
]
DTYPES = [*FLOATS, *INTEGERS, np.dtype(bool)]


def sample(seed: int | Sequence[int], shape: int | Sequence[int], dtype: Any) -> Array:
    """Return numbers of all kinds: in floats a tenth are NaN, inf, -0.0 and tiny."""
    dice = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    length = int(np.prod(shape))
    # Every pattern of bits is an integer, and all but 0 are true.
    array = np.frombuffer(dice.bytes(length * dtype.itemsize), dtype).copy()
    if dtype.kind not in "biu":
        array = (dice.standard_normal(length) * 3).astype(dtype)
        # What has a payload or a sign, and what is below the normal numbers.
        bits = {2: np.uint16, 4: np.uint32, 8: np.uint64}[dtype.itemsize]
        special = np.concatenate(
            [
                np.array([np.nan, np.inf, -np.inf, 0.0, -0.0], dtype).view(bits),
                -np.array([np.nan, -np.nan], dtype).view(bits) // 2,
                np.array([1, 2, 77], bits),
                np.array([-0.0], dtype).view(bits) + np.array([3, 78], bits),
            ]
        ).view(dtype)
        chosen = dice.random(length) < 0.1
        array[chosen] = dice.choice(special, chosen.sum())
    return array.reshape(shape)


def same(found: Any, expected: Any) -> bool:
    """Return whether two arrays are equal to the bit, in dtype and in shape."""
    found, expected = np.asarray(found), np.asarray(expected)
    return (found.dtype, found.shape, found.tobytes()) == (
        expected.dtype,
        expected.shape,
        expected.tobytes(),
    )
