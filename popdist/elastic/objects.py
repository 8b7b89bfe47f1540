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
        # By address and length: tensors that are views of one storage stay so.
        # Any: only a process that has tensors imports torch.
        self._storages: dict[tuple[int, int], Any] = {}
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
        """Reduce a tensor to its storage, and that to an array."""
        torch = sys.modules.get("torch")
        if torch is None:
            return NotImplemented
        if type(obj) is torch.UntypedStorage and obj.device.type == "cpu":
            return _storage_of, (torch.empty(0, dtype=torch.uint8).set_(obj).numpy(),)
        if type(obj) not in (torch.Tensor, torch.nn.Parameter):
            return NotImplemented
        if obj.layout != torch.strided or obj.device.type != "cpu":
            return NotImplemented
        if obj.is_quantized or obj.is_conj() or obj.is_neg():
            return NotImplemented
        storage = obj.untyped_storage()
        # All empty storages have one address, but may grow, and share nothing then.
        if not storage.nbytes():
            return NotImplemented
        key = storage.data_ptr(), storage.nbytes()
        storage = self._storages.setdefault(key, storage)
        view = obj.storage_offset(), tuple(obj.shape), obj.stride()
        is_parameter = type(obj) is torch.nn.Parameter
        # The dtype first: the process that reads it may not have imported torch.
        return _tensor_of, (obj.dtype, storage, view, obj.requires_grad, is_parameter)


def _storage_of(memory: NDArray[np.uint8]) -> Any:
    return sys.modules["torch"].from_numpy(memory).untyped_storage()


def _tensor_of(
    dtype: Any,
    storage: Any,
    view: tuple[int, Sequence[int], Sequence[int]],
    needs_grad: bool,
    is_parameter: bool,
) -> Any:
    """Return the tensor that _Pickler has reduced."""
    torch = sys.modules["torch"]
    tensor = torch.empty(0, dtype=dtype).set_(storage, *view)
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
    # Any: the arrays have different dtypes.
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
