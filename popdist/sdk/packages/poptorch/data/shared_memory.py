"""Tensors that several processes have, also on machines with a small /dev/shm or none.

torch makes its shared memory there. Here it is made of files without names.
"""

import io
import os
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing.reductions import reduce_storage

from ..errors import require


def move_to_shared(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of a contiguous tensor in shared memory."""
    storage = _in_memfd(tensor.untyped_storage())
    shared: torch.Tensor = torch.empty(0, dtype=tensor.dtype)
    return shared.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())


# Any: whatever can be pickled.
def dumps(content: Any) -> memoryview:
    """Pickle an object for another process, which gets its tensors in shared memory."""
    pickled = io.BytesIO()
    pickler = ForkingPickler(pickled)
    pickler.dispatch_table[torch.UntypedStorage] = _reduce
    pickler.dump(content)
    return pickled.getbuffer()


def check_workers(num_workers: int) -> None:
    """Raise AssertionError if there are to be workers, whose queues need /dev/shm."""
    require(
        not num_workers or os.access("/dev/shm", os.W_OK),
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
    """Describe a storage for another process."""
    # Any: torch has no types for it.
    reduce: Any = reduce_storage
    try:
        return reduce(storage)
    except RuntimeError:
        # There is not as much room in /dev/shm, where torch would have moved it.
        return reduce(_in_memfd(storage))
