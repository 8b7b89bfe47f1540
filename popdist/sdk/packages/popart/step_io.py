"""The inputs and outputs of a call on the host: inputs, anchors and weights."""

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import torch

from .enums import SyntheticDataMode
from .errors import popart_exception
from .tensor_info import BY_NUMPY, TensorInfo, sizes

Array = np.ndarray[tuple[int, ...], np.dtype[np.generic]]

# The types that are converted on their way to the device.
_NARROWED = {("INT64", "INT32"), ("UINT64", "UINT32")}


class StepIO(Protocol):
    """Where the inputs of micro-batches come from and their anchors go to."""

    def begin(self, expected: Mapping[str, tuple[TensorInfo, int]]) -> None:
        """Check what the program gave, before anything runs.

        Args:
            expected: The type and shape of each input in one micro-batch, and how many
                micro-batches one call has.
        """

    def read(self, name: str, info: TensorInfo, index: int) -> torch.Tensor:
        """Return an input of one micro-batch."""

    def write(self, name: str, value: torch.Tensor, index: int) -> None:
        """Hand out what an anchor holds next."""


def contiguous(array: Array, name: str, role: str) -> Array:
    """Return the array, unless it is not contiguous."""
    if not array.flags.c_contiguous:
        raise popart_exception(
            f"PyStepIO is unable to use the numpy {role} array for tensor '{name}' as "
            "it is not c-contiguous (a data conversion here could have a significant "
            "impact on performance and hence is not allowed)"
        )
    return array


def as_input(array: Array, name: str, info: TensorInfo) -> torch.Tensor:
    """Return a copy of the elements as a tensor of the input's type.

    Raises:
        popart_exception: They have another type.
    """
    kind = BY_NUMPY.get(array.dtype)
    given = kind.name if kind else str(array.dtype)
    wanted = info.data_type()
    if given != wanted and (given, wanted) not in _NARROWED:
        raise popart_exception(
            f"Type discrepancy for tensor {name}. User provided : {given} and expected "
            f": {wanted}. Convert the array with astype first."
        )
    return torch.from_numpy(array.astype(info.element_type.numpy))


class PyStepIO:
    """Inputs and anchors as numpy arrays, which hold all micro-batches of a call."""

    def __init__(
        self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]
    ) -> None:
        self._inputs = {
            name: contiguous(np.asarray(array), name, "input")
            for name, array in inputs.items()
        }
        self._outputs = {
            name: contiguous(array, name, "output") for name, array in outputs.items()
        }
        self._checks = True

    def enableRuntimeAsserts(self, enable: bool) -> None:
        """Set whether the numbers of elements are checked."""
        self._checks = enable

    def begin(self, expected: Mapping[str, tuple[TensorInfo, int]]) -> None:
        """Check that each input has as many elements as the micro-batches need."""
        for name, (info, count) in expected.items():
            if name not in self._inputs:
                raise popart_exception(
                    f"The input {name} has no array. Give one for each of "
                    f"{', '.join(expected)} to PyStepIO."
                )
            needed, given = info.nelms() * count, self._inputs[name].size
            if self._checks and needed != given:
                raise popart_exception(
                    f"Unexpected number of input elements for tensor {name}. Expected "
                    f"{needed} ({count} micro-batches of {sizes(info.shape())}), but "
                    f"received {given}."
                )

    def read(self, name: str, info: TensorInfo, index: int) -> torch.Tensor:
        """Return an input of one micro-batch."""
        size = info.nelms()
        flat = self._inputs[name].reshape(-1)
        part = flat[index * size : (index + 1) * size].reshape(info.shape())
        return as_input(part, name, info)

    def write(self, name: str, value: torch.Tensor, index: int) -> None:
        """Write the next value of an anchor to its array.

        Raises:
            popart_exception: There is no array, or it is too short.
        """
        if name not in self._outputs:
            raise popart_exception(
                f"The anchor {name} has no array. Give PyStepIO the arrays that "
                "initAnchorArrays() returns."
            )
        flat, size = self._outputs[name].reshape(-1), value.numel()
        if flat.size < (index + 1) * size:
            raise popart_exception(
                f"The array of anchor {name} has {flat.size} elements, which is too "
                "few for this call. Give PyStepIO the arrays that initAnchorArrays() "
                "returns."
            )
        flat[index * size : (index + 1) * size] = value.reshape(-1).numpy()


class PyStepIOCallback:
    """Inputs and anchors by callbacks, which are called for each micro-batch."""

    def __init__(
        self,
        input_callback: Callable[[str, bool], Array],
        input_complete_callback: Callable[[str], object],
        output_callback: Callable[[str], Array],
        output_complete_callback: Callable[[str], object],
    ) -> None:
        self._input = input_callback
        self._input_complete = input_complete_callback
        self._output = output_callback
        self._output_complete = output_complete_callback

    def begin(self, expected: Mapping[str, tuple[TensorInfo, int]]) -> None:
        """Check nothing: the callbacks give one micro-batch after another."""

    def read(self, name: str, info: TensorInfo, index: int) -> torch.Tensor:
        """Return an input of the next micro-batch."""
        array = contiguous(np.asarray(self._input(name, False)), name, "input")
        if array.size != info.nelms():
            raise popart_exception(
                f"The callback gave {array.size} elements for the input {name}, but a "
                f"micro-batch has {info.nelms()}: {sizes(info.shape())}."
            )
        value = as_input(array.reshape(info.shape()), name, info)
        self._input_complete(name)
        return value

    def write(self, name: str, value: torch.Tensor, index: int) -> None:
        """Write the next value of an anchor to an array from the callback."""
        array = contiguous(self._output(name), name, "output")
        if array.size != value.numel():
            raise popart_exception(
                f"The callback gave an array of {array.size} elements for the anchor "
                f"{name}, which has {value.numel()}."
            )
        array.reshape(-1)[:] = value.reshape(-1).numpy()
        self._output_complete(name)


class SyntheticInputs:
    """Inputs of zeros or normal numbers; anchors go to the program as ever."""

    def __init__(self, io: StepIO, mode: SyntheticDataMode) -> None:
        self._io, self._mode = io, mode

    def begin(self, expected: Mapping[str, tuple[TensorInfo, int]]) -> None:
        """Check nothing: what the program gave is not read."""

    def read(self, name: str, info: TensorInfo, index: int) -> torch.Tensor:
        """Return an input of one micro-batch."""
        shape, dtype = info.shape(), info.element_type.torch
        if self._mode == SyntheticDataMode.Zeros:
            return torch.zeros(shape, dtype=dtype)
        # The same in every run, and integers that any label may have.
        generator = torch.Generator().manual_seed(index)
        values = torch.randn(shape, generator=generator)
        return (
            values.to(dtype)
            if dtype.is_floating_point
            else torch.zeros(shape, dtype=dtype)
        )

    def write(self, name: str, value: torch.Tensor, index: int) -> None:
        """Hand out what an anchor holds next."""
        self._io.write(name, value, index)


class PyWeightsIO:
    """Arrays of weights, by their names, for readWeights() and writeWeights()."""

    def __init__(self, weights: Mapping[str, Array]) -> None:
        self.weights = dict(weights)
