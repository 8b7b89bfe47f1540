"""The calls of torch.distributed that run in the engine's core, without Python's steps.

These are calls on one dense CPU tensor, or on a dense source and a dense target. With
small tensors the Python code takes longer than the exchange.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from popdist.engine import _core
from popdist.engine.group import Group
from popdist.torch.calls.reduce_ops import ENGINE_OPS
from popdist.torch.calls.work import DONE

# Any, because torch declares no types for these.
_Tensor: Any = Tensor
_autograd: Any = torch.autograd
is_profiled: Callable[[], bool] = _autograd._profiler_enabled


def _reductions() -> bytes:
    """Return the engine's codes of torch's reductions, by the hashes of these."""
    codes = {hash(dist.ReduceOp(kind)): code for kind, code in ENGINE_OPS.items()}
    return bytes(codes.get(number, 0xFF) for number in range(max(codes) + 1))


_TORCH = (
    # DLPack's table of functions: the core reads tensors with it.
    getattr(_Tensor, "__dlpack_c_exchange_api__", None),
    Tensor,
    _Tensor.is_neg,
    is_profiled,
    torch._C._current_graph_task_id,
    _reductions(),
    timedelta(),
    DONE,
)


def calls_in_core(group: Group, overlaps: bool) -> _core.TensorCalls:
    """Return the object that makes these calls of a group.

    Args:
        overlaps: Whether an asynchronous call takes no time from a backward pass.
    """
    return _core.TensorCalls(group, _TORCH, overlaps)
