"""The all-reduce as an operator of torch, and tensors in the arena.

torch.ops.popdist.all_reduce(tensor, op, group) returns the reduction;
torch.ops.popdist.all_reduce_(tensor, op, group) writes it over the tensor. `op` is one
of the engine's, "sum" by default. `group` is the name of a process group of the backend
"popdist"; "" stands for the default process group, or where there is none, for the
group of all instances of the job. torch.compile takes both into its graphs.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import _resolve_process_group

from popdist.engine.group import Group
from popdist.groups.instance_group import instance_group
from popdist.torch import tensors
from popdist.torch.backend.process_group import ProcessGroupPopdist
from popdist.torch.calls.untraced import untraced
from popdist.torch.tensor_rows import empty_in

# Any, because torch declares no types for its methods.
_torch_library: Any = torch.library
_library = _torch_library.Library("popdist", "DEF")
# Up to here a copy that is reduced in place is sooner than a call with two tensors.
_COPIED_BYTES = 1 << 16


def empty(
    *shape: int | Sequence[int],
    dtype: torch.dtype | None = None,
    group: ProcessGroupPopdist | None = None,
) -> Tensor:
    """Return a new tensor in the memory that all members share.

    An all_reduce of such tensors in place, on all members, copies nothing in or out.
    This applies to calls of this group only. Creating one takes longer than torch.empty
    does, so create it once and use it often. On machines that do not allow this kind of
    shared memory, it returns an ordinary tensor.

    Args:
        shape: The tensor's shape: several numbers, or a sequence of them.
        dtype: torch's default dtype by default.
        group: The process group; by default the default one, or the group of all
            instances.
    """
    first = shape[0] if len(shape) == 1 else shape
    sizes: Any = (first,) if isinstance(first, int) else tuple(first)
    chosen = _default_group() if group is None else group.engine_group
    return empty_in(chosen, sizes, dtype or torch.get_default_dtype())


def all_reduce(tensor: Tensor, op: str = "sum", group: str = "") -> Tensor:
    """Return the reduction of all members' tensors: torch.ops.popdist.all_reduce."""
    # torch's operators have no types.
    reduction: Tensor = torch.ops.popdist.all_reduce(tensor, op, group)
    return reduction


def _default_group() -> Group:
    if dist.is_initialized() and isinstance(dist.group.WORLD, ProcessGroupPopdist):
        return dist.group.WORLD.engine_group
    return instance_group()


def _group_named(name: str) -> Group:
    if not name:
        return _default_group()
    # Any, because torch has a separate type for such names.
    group_name: Any = name
    group: Any = _resolve_process_group(group_name)
    if not isinstance(group, ProcessGroupPopdist):
        raise ValueError(
            f"The process group {name!r} does not belong to popdist. Give the "
            'group_name of a group with the backend "popdist".'
        )
    return group.engine_group


@untraced
def _all_reduce(tensor: Tensor, op: str = "sum", group: str = "") -> Tensor:
    chosen = _group_named(group)
    if tensor.nbytes <= _COPIED_BYTES:
        out = tensor.clone(memory_format=torch.contiguous_format)
        tensors.all_reduce(chosen, [out], op)
    else:
        out = torch.empty(tensor.shape, dtype=tensor.dtype)
        tensors.all_reduce(chosen, [tensor], op, out=[out])
    return out


@untraced
def _all_reduce_in_place(tensor: Tensor, op: str = "sum", group: str = "") -> None:
    tensors.all_reduce(_group_named(group), [tensor], op)


def _like(tensor: Tensor, op: str = "sum", group: str = "") -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)


def _keep(ctx: Any, inputs: tuple[Tensor, str, str], output: Tensor) -> None:
    _, ctx.op, ctx.group = inputs


def _gradient(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
    """Return the gradient of every member's losses by this member's tensor."""
    if ctx.op not in ("sum", "mean"):
        raise RuntimeError(
            f'popdist::all_reduce has no gradient for op {ctx.op!r}, but for "sum" and '
            '"mean". Use one of those, or detach() the tensor.'
        )
    return all_reduce(gradient, ctx.op, ctx.group), None, None


_library.define('all_reduce(Tensor tensor, str op="sum", str group="") -> Tensor')
_library.define('all_reduce_(Tensor(a!) tensor, str op="sum", str group="") -> ()')
_library.impl("all_reduce", _all_reduce, "CPU")
_library.impl("all_reduce_", _all_reduce_in_place, "CPU")
_library.impl("all_reduce_", lambda tensor, op="sum", group="": None, "Meta")
torch.library.register_fake("popdist::all_reduce", _like, lib=_library)
torch.library.register_autograd(
    "popdist::all_reduce", _gradient, setup_context=_keep, lib=_library
)
