"""DeepSpeed's all-reduce through shared memory, as benchmarks call it."""

import os
from collections.abc import Callable
from pathlib import Path

import torch


def load_all_reduce(rank: int, size: int) -> Callable[[torch.Tensor], object]:
    """Return the function, on each of the processes of a job of poprun."""
    from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder

    ShareMemCommBuilder().load(verbose=False).initialize(size, rank)
    all_reduce: Callable[[torch.Tensor], object]
    all_reduce = torch.ops.deepspeed.inference_all_reduce_
    # After a call all have opened the buffers; DeepSpeed leaves their names behind.
    all_reduce(torch.ones(1))
    address, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    pattern = f"deepspeed_allreduce_buffer_*_{address}_{port}_{rank}"
    for path in Path("/dev/shm").glob(pattern):
        path.unlink()
    return all_reduce
