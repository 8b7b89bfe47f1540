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


# The objects of torch that _core.TensorCalls uses.
TORCH_OBJECTS = (
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
