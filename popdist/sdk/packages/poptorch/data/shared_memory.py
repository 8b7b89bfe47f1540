"""Tensors in shared memory, also on machines with a small /dev/shm or none.

torch makes its shared memory there. Here it is made of files without names. Any: torch
has no types for its storages, and picklers take all types.
"""

import os
from multiprocessing.reduction import ForkingPickler
from typing import Any, ClassVar

import torch
from torch.multiprocessing.reductions import reduce_storage, reduce_tensor

from ..errors import require


def move_to_shared(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of a contiguous tensor in shared memory."""
    storage = _in_memfd(tensor.untyped_storage())
    shared: torch.Tensor = torch.empty(0, dtype=tensor.dtype)
    return shared.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())


def check_workers(num_workers: int) -> None:
    """Raise AssertionError if there are to be workers, and there cannot be any."""
    require(
        not num_workers or os.access("/dev/shm", os.W_OK),
        f"num_workers is {num_workers}, but /dev/shm cannot be written, where Python "
        "makes the semaphores of workers. Use num_workers=0, also with "
        "DataLoaderMode.Async, or mount a tmpfs on /dev/shm.",
    )


def _in_memfd(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """Return a copy of a storage in a file that has no name."""
    size = storage.nbytes()
    # mmap() refuses a length of 0.
    if not size:
        return storage
    storages: Any = torch.UntypedStorage
    file = os.memfd_create("poptorch")
    try:
        os.ftruncate(file, size)
        # It duplicates the descriptor.
        shared: torch.UntypedStorage = storages._new_shared_fd_cpu(file, size)
    finally:
        os.close(file)
    return shared.copy_(storage, non_blocking=False)


# Any: torch has no types for these two.
_reduce_storage: Any = reduce_storage
_reduce_tensor: Any = reduce_tensor


def _share(storage: torch.UntypedStorage) -> Any:
    """Describe a storage for another process."""
    try:
        return _reduce_storage(storage)
    except RuntimeError:
        # There is not as much room in /dev/shm, where torch would have moved it.
        return _copy(storage)


def _copy(storage: torch.UntypedStorage) -> Any:
    """Describe a copy of a storage for another process."""
    return _reduce_storage(_in_memfd(storage))


def _copy_view(tensor: torch.Tensor) -> Any:
    """Describe a tensor, without the rest of the storage that it may be a part of."""
    if (
        tensor.is_leaf
        and tensor.layout == torch.strided
        and tensor.nbytes < tensor.untyped_storage().nbytes()
    ):
        tensor = tensor.detach().clone().requires_grad_(tensor.requires_grad)
    return _reduce_tensor(tensor)


class SharingPickler(ForkingPickler):
    """Moves tensors to memory that is shared with the process that reads them."""

    REDUCERS: ClassVar[dict[type, Any]] = {torch.UntypedStorage: _share}

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.dispatch_table.update(self.REDUCERS)


class CopyingPickler(SharingPickler):
    """Copies tensors for the other process: their owner may change them afterwards."""

    # A storage has to be copied anyway, unless it is in shared memory already.
    REDUCERS: ClassVar[dict[type, Any]] = {
        torch.UntypedStorage: _copy,
        torch.Tensor: _copy_view,
    }
