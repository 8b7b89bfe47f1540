"""PyTorch on popdist: after `import popdist.torch`, torch.distributed has a backend.

    dist.init_process_group("popdist")

Under poprun it needs no address and no port.
"""

from popdist.torch import versions  # noqa: F401 (warns before another import fails)
from popdist.torch.backend.process_group import ProcessGroupPopdist
from popdist.torch.backend.registration import register
from popdist.torch.hooks import ArenaBuckets, reduce_in_arena, reduce_now
from popdist.torch.operators import all_reduce, empty
from popdist.torch.profiles import add_to_trace

__all__ = [
    "ArenaBuckets",
    "ProcessGroupPopdist",
    "add_to_trace",
    "all_reduce",
    "empty",
    "reduce_in_arena",
    "reduce_now",
]

register()
