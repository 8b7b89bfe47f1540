"""The types and reductions that the engine knows, and their codes in the C core."""

from functools import cache
from importlib import import_module

import numpy as np

# The dtype of any array.
DType = np.dtype[np.generic]

# The C core has the same numbers.
DTYPES = {
    "float32": 0,
    "float64": 1,
    "float16": 2,
    "bfloat16": 3,
    "int8": 4,
    "int16": 5,
    "int32": 6,
    "int64": 7,
    "uint8": 8,
    "uint16": 9,
    "uint32": 10,
    "uint64": 11,
    "bool": 12,
}
# How many bytes an element has, by its dtype's code.
_ITEM_BYTES = (4, 8, 2, 2, 1, 2, 4, 8, 1, 2, 4, 8, 1)
REDUCTIONS = {"sum": 0, "min": 1, "max": 2, "prod": 3, "mean": 4}

_DTYPE_NAMES = {code: name for name, code in DTYPES.items()}
_REDUCTION_NAMES = {code: name for name, code in REDUCTIONS.items()}

# numpy has no bfloat16. The package that has one, ml_dtypes, is not imported before
# a program passes such an array.
_CODES: dict[DType, int] = {
    np.dtype(name): code for name, code in DTYPES.items() if name != "bfloat16"
}

_FLOAT32: DType = np.dtype(np.float32)
# Reduced in float32.
_HALF_WIDTH = (DTYPES["float16"], DTYPES["bfloat16"])


def code_of(dtype: DType) -> int:
    """Return the code of a dtype.

    Raises:
        TypeError: The engine does not know this dtype.
    """
    code = _CODES.get(dtype)
    return _learn(dtype) if code is None else code


def _learn(dtype: DType) -> int:
    if dtype.name != "bfloat16" or dtype.itemsize != 2 or not dtype.isnative:
        raise TypeError(
            f"The array's dtype is {dtype}, but must be {', '.join(DTYPES)}, in this "
            "machine's byte order. Convert it with astype first."
        )
    _CODES[dtype] = DTYPES["bfloat16"]
    return DTYPES["bfloat16"]


def name_of(code: int) -> str:
    """Return the name of the dtype with this code."""
    return _DTYPE_NAMES[code]


def item_bytes_of(code: int) -> int:
    """Return how many bytes an element of the dtype with this code has.

    Raises:
        ValueError: No dtype has this code.
    """
    if not 0 <= code < len(_ITEM_BYTES):
        raise ValueError(
            f"The dtype code is {code}, but must be one of 0 to "
            f"{len(_ITEM_BYTES) - 1}: see DTYPES."
        )
    return _ITEM_BYTES[code]


@cache
def dtype_of(code: int) -> DType:
    """Return the dtype with this code.

    Raises:
        TypeError: It is bfloat16, and this process has no package that has one.
    """
    known = next((dtype for dtype, other in _CODES.items() if other == code), None)
    return _bfloat16() if known is None else known


def _bfloat16() -> DType:
    try:
        package = import_module("ml_dtypes")
    except ImportError:
        raise TypeError(
            "Another instance handed over an array of bfloat16, which numpy does not "
            "have. Install ml_dtypes for all instances."
        ) from None
    dtype: DType = np.dtype(package.bfloat16)
    _CODES[dtype] = DTYPES["bfloat16"]
    return dtype


def accumulation(dtype: DType) -> DType:
    """Return the dtype in which arrays of this one are reduced."""
    return _FLOAT32 if code_of(dtype) in _HALF_WIDTH else dtype


def reduction_code_of(reduction: str, dtype: int) -> int:
    """Return the code of a reduction, for arrays of the dtype with this code.

    Raises:
        ValueError: There is no such reduction.
        TypeError: It cannot reduce this dtype.
    """
    code = REDUCTIONS.get(reduction)
    if code is None:
        raise ValueError(
            f"The reduction is {reduction!r}, but must be {', '.join(REDUCTIONS)}."
        )
    if dtype == DTYPES["bool"] and reduction == "mean":
        raise TypeError(
            "The mean of bool would not be a bool, so the engine makes none. Ask for "
            "sum, min, max or prod, or convert the array first."
        )
    return code


def reduction_name_of(code: int) -> str:
    """Return the name of the reduction with this code."""
    return _REDUCTION_NAMES[code]
