"""The types and shapes of tensors, by the names of PopART, ONNX, numpy and torch.

Any: a type is a name of PopART or a dtype of numpy.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
import torch

from .errors import popart_exception


class ElementType(NamedTuple):
    """One type of elements, by all of its names."""

    name: str
    onnx: int
    torch: torch.dtype
    numpy: npt.DTypeLike


def _element_type(name: str) -> ElementType:
    number = onnx.TensorProto.DataType.Value(name)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(number)
    return ElementType(name, number, torch.from_numpy(np.empty(0, dtype)).dtype, dtype)


ELEMENT_TYPES = [
    *map(_element_type, ("FLOAT", "FLOAT16", "DOUBLE", "INT8", "INT16", "INT32")),
    *map(_element_type, ("INT64", "UINT8", "UINT16", "UINT32", "UINT64", "BOOL")),
]
BY_NAME = {kind.name: kind for kind in ELEMENT_TYPES}
BY_ONNX = {kind.onnx: kind for kind in ELEMENT_TYPES}
BY_TORCH = {kind.torch: kind for kind in ELEMENT_TYPES}
BY_NUMPY = {np.dtype(kind.numpy): kind for kind in ELEMENT_TYPES}


def element_type(dtype: Any) -> ElementType:
    """Return the type of elements that a name or a dtype means.

    Raises:
        popart_exception: There is no such type here.
    """
    if isinstance(dtype, str) and dtype.upper() in BY_NAME:
        return BY_NAME[dtype.upper()]
    try:
        return BY_NUMPY[np.dtype(dtype)]
    except (KeyError, TypeError):
        raise popart_exception(
            f"{dtype!r} is not an element type. Choose one of {', '.join(BY_NAME)}."
        ) from None


class TensorInfo:
    """The type and the shape of a tensor."""

    def __init__(self, *args: Any) -> None:
        if len(args) == 1 and isinstance(args[0], np.ndarray):
            dtype, shape = args[0].dtype, args[0].shape
        elif len(args) == 2:
            dtype, shape = args
        else:
            raise TypeError(
                f"Cannot create a TensorInfo of {args!r}. Give a type and a shape, or "
                "a numpy array."
            )
        self.element_type = element_type(dtype)
        self._shape = tuple(int(size) for size in shape)

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "TensorInfo":
        """Return the type and shape of a tensor of torch's."""
        if tensor.dtype not in BY_TORCH:
            raise popart_exception(f"PopART has no tensors of {tensor.dtype}.")
        return cls(BY_TORCH[tensor.dtype].name, tensor.shape)

    def shape(self) -> list[int]:
        """Return the sizes of the dimensions."""
        return list(self._shape)

    def nelms(self) -> int:
        """Return the number of elements."""
        return int(np.prod(self._shape, dtype=np.int64))

    def rank(self) -> int:
        """Return the number of dimensions."""
        return len(self._shape)

    def data_type(self) -> str:
        """Return the name of the type of elements."""
        return self.element_type.name

    def data_type_lcase(self) -> str:
        """Return the name of the type of elements as numpy has it."""
        return np.dtype(self.element_type.numpy).name

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TensorInfo):
            return NotImplemented
        return (self.data_type(), self._shape) == (other.data_type(), other._shape)

    def __hash__(self) -> int:
        return hash((self.data_type(), self._shape))

    def __repr__(self) -> str:
        return f"{self.data_type()} {self.shape()}"


def sizes(shape: Sequence[int]) -> str:
    """Return a shape as errors show it."""
    return f"[{', '.join(map(str, shape))}]"
