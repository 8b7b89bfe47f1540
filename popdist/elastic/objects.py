"""Broadcasts of objects: large arrays and tensors as they are, all else pickled."""

import pickle
import sys
from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from popdist.engine.group import Group

# Arrays and tensors of at least so many bytes are not copied into the pickle.
_LARGE_BYTES = 1 << 16


class _Pickler(pickle.Pickler):
    """Leaves large arrays and tensors out of the pickle."""

    def __init__(self, file: BytesIO, buffers: list[NDArray[np.uint8]]) -> None:
        self._buffers = buffers
        super().__init__(file, protocol=5, buffer_callback=self._take)

    def _take(self, buffer: pickle.PickleBuffer) -> bool:
        """Take a buffer, or return True to have it in the pickle."""
        raw = buffer.raw()
        if raw.nbytes < _LARGE_BYTES:
            return True
        self._buffers.append(np.frombuffer(raw, np.uint8))
        return False

    # Any: objects of all types are pickled.
    def reducer_override(self, obj: Any) -> Any:
        """Reduce a tensor to its memory, as numpy does with arrays."""
        torch = sys.modules.get("torch")
        if torch is None or type(obj) not in (torch.Tensor, torch.nn.Parameter):
            return NotImplemented
        if obj.layout != torch.strided or obj.device.type != "cpu":
            return NotImplemented
        if obj.is_quantized or obj.is_complex() or not obj.numel():
            return NotImplemented
        data = obj.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
        is_parameter = type(obj) is torch.nn.Parameter
        shape, needs_grad = tuple(obj.shape), obj.requires_grad
        buffer = pickle.PickleBuffer(data)
        return _tensor_of, (buffer, obj.dtype, shape, needs_grad, is_parameter)


# Any: only a process that has tensors imports torch.
def _tensor_of(
    data: Any, dtype: Any, shape: Sequence[int], needs_grad: bool, is_parameter: bool
) -> Any:
    """Return the tensor that _Pickler has reduced."""
    # The pickled dtype has imported it.
    torch = sys.modules["torch"]
    # The pickle's own bytes cannot be written.
    if memoryview(data).readonly:
        data = bytearray(data)
    tensor = torch.frombuffer(data, dtype=dtype).reshape(shape)
    if is_parameter:
        return torch.nn.Parameter(tensor, requires_grad=needs_grad)
    return tensor.requires_grad_(needs_grad)


def broadcast_object(group: Group, make: Callable[[], Any], root: int) -> Any:
    """Return the object of one member on all others, and None on that member.

    Args:
        make: Returns the object. Only the root's is called.
    """
    if group.rank != root:
        return _receive(group, root)
    file, buffers = BytesIO(), list[NDArray[np.uint8]]()
    try:
        _Pickler(file, buffers).dump(make())
    except BaseException as error:
        # The others would wait for it.
        group.give_up("State.sync()", error)
        raise
    sizes = np.array([len(buffer) for buffer in buffers], np.int64)
    data = np.frombuffer(file.getbuffer(), np.uint8)
    lengths = np.array([len(data), len(sizes)], np.int64)
    # Any: each array has a dtype of its own.
    arrays: list[NDArray[Any]] = [lengths, sizes, data, *buffers]
    for array in arrays:
        group.broadcast(array, root)
    return None


def _receive(group: Group, root: int) -> Any:
    def receive(array: NDArray[Any]) -> NDArray[Any]:
        return group.broadcast(array, root, out=array)

    length, count = receive(np.empty(2, np.int64)).tolist()
    sizes = receive(np.empty(count, np.int64))
    data = receive(np.empty(length, np.uint8))
    buffers = [receive(np.empty(size, np.uint8)) for size in sizes.tolist()]
    # Any: an array is as good as bytes, but not declared so.
    content: Any = data
    return pickle.loads(content, buffers=buffers)
