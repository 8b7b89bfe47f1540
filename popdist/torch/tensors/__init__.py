"""The calls of an engine group on torch tensors: by address, never through numpy.

Every function takes the group first: popdist.instance_group(), where each member gives
one tensor, or a group with replicas, such as popdist.replica_group(). The functions are
collective: all members make the same calls in the same order, with tensors of one dtype
and shape.

- Tensors need not be contiguous: other tensors go through copies.
- Reductions take float32, float64, float16, bfloat16, bool and all integers, as "sum",
  "mean", "min", "max" or "prod". float16 and bfloat16 are added up in float32. Calls
  that only hand tensors on take every dtype, complex ones too.
- Without async_op a call returns its result when this member has it. With async_op it
  returns at once, a popdist.Handle: `wait()` blocks until the call is over and returns
  the result, or raises the call's error; `test()` never blocks;
  `add_done_callback(f)` calls `f(handle)` in the thread that makes the group's calls,
  and `handle.result()` is there then. Tensors must not be touched before that.
- With async_op="deferred" it does, too, and `wait()` makes the call itself if it comes
  within 2 ms: no other thread has to be woken for it.
- `name` is the name of the call among the members: if popdist.named.order makes a call,
  pass its name on.

Autograd does not see these calls.
"""

from popdist.torch.tensors.tensor_exchanges import (
    all_gather,
    all_gather_varied,
    all_to_all,
    all_to_all_parts,
    barrier,
    broadcast,
    gather,
    scatter,
)
from popdist.torch.tensors.tensor_reductions import all_reduce, reduce, reduce_scatter

__all__ = [
    "all_gather",
    "all_gather_varied",
    "all_reduce",
    "all_to_all",
    "all_to_all_parts",
    "barrier",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "scatter",
]
