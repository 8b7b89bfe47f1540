"""Tensors that several processes have, also on machines without /dev/shm."""

import os
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing.reductions import reduce_storage

from ..errors import require

# Where torch makes its shared memory, and Python its semaphores.
_HAS_FOLDER = os.access("/dev/shm", os.W_OK)


def move_to_shared(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous tensor in shared memory: the same one, or a copy."""
    if _HAS_FOLDER:
        tensor.share_memory_()  # type: ignore[no-untyped-call]
        return tensor
    storage = _in_memfd(tensor.untyped_storage())
    shared: torch.Tensor = torch.empty(0, dtype=tensor.dtype)
    return shared.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())


def check_workers(num_workers: int) -> None:
    """Raise AssertionError if there are to be workers, whose queues need /dev/shm."""
    require(
        not num_workers or _HAS_FOLDER,
        f"num_workers is {num_workers}, but /dev/shm cannot be written, where Python "
        "makes the semaphores of workers. Use num_workers=0, also with "
        "DataLoaderMode.Async, or mount a tmpfs on /dev/shm.",
    )


def _in_memfd(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """Return a copy of a storage in a file that has no name."""
    size = storage.nbytes()
    # Of no bytes, nothing can be mapped.
    if not size:
        return storage
    # Any: torch has no types for it.
    storages: Any = torch.UntypedStorage
    file = os.memfd_create("poptorch")
    try:
        os.ftruncate(file, size)
        # It duplicates the descriptor.
        shared: torch.UntypedStorage = storages._new_shared_fd_cpu(file, size)
    finally:
        os.close(file)
    return shared.copy_(storage, non_blocking=False)


# Any: what pickle rebuilds an object from.
def _reduce(storage: torch.UntypedStorage) -> Any:
    """Describe a storage for another process; by its bytes if it is not shared."""
    if storage.device.type == "cpu" and not storage.is_shared():
        return _rebuilt, (_bytes_of(storage).numpy().tobytes(),)
    reduce: Any = reduce_storage
    return reduce(storage)


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    whole: torch.Tensor = torch.empty(0, dtype=torch.uint8)
    return whole.set_(storage, 0, (storage.nbytes(),), (1,))


def _rebuilt(content: bytes) -> torch.UntypedStorage:
    if not content:
        return torch.empty(0).untyped_storage()
    # torch warns of memory that cannot be written.
    whole = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    return whole.clone().untyped_storage()


if not _HAS_FOLDER:
    ForkingPickler.register(torch.UntypedStorage, _reduce)
