"""Members of torch.distributed's process group, as forks of the test."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import popdist.torch  # noqa: F401 (registers the backend)
from tests.popdist.engine.members import Ended, Me, results, run

# Members are forks: a thread of OpenMP would not be in them. Neither would autograd's
# thread for a GPU: a torch built for CUDA pretends to have one after it has traced.
torch.set_num_threads(1)
vars(torch._C)["_ensureCUDADeviceGuardSet"] = lambda: None

# torch 2.10 has no other way to make one.
PREMUL_SUM: Any = dist._make_nccl_premul_sum  # type: ignore[attr-defined]


def _in_group(
    path: Path, function: Callable[[int, int], Any], timeout: float
) -> Callable[[Me], Any]:
    def member(me: Me) -> Any:
        dist.init_process_group(
            "popdist",
            store=dist.FileStore(str(path / "store"), me.size),
            rank=me.rank,
            world_size=me.size,
            timeout=timedelta(seconds=timeout),
        )
        found = function(me.rank, me.size)
        dist.destroy_process_group()
        return found

    return member


def on_all(path: Path, size: int, function: Callable[[int, int], Any]) -> list[Any]:
    """Return what function(rank, size) returns on each member of a process group."""
    return results(size, _in_group(path, function, 200))


def ends_of(
    path: Path, size: int, function: Callable[[int, int], Any], timeout: float
) -> list[Ended]:
    """Return how function(rank, size) ends on each member of a process group."""
    return run(size, _in_group(path, function, timeout))


def world() -> Any:
    """Return the default process group. torch declares only a part of its methods."""
    return dist.group.WORLD
