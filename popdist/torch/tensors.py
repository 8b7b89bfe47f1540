"""Calls of an engine group on torch tensors: by address, never through numpy.

They are for programs' own groups and for adapters; a process group of torch.distributed
makes its calls in popdist.torch.calls. Both take the group first, are collective, and
return when this member has its result. Autograd does not see them.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from popdist.engine.calls.array_transport import ArrayTransport
from popdist.engine.group import Group
from popdist.engine.spec.dtypes import REDUCTIONS, reduction_code_of
from popdist.torch.tensor_rows import (
    CODES,
    TORCH,
    check,
    check_written,
    code_of,
    plain,
)

# One array of a call: a tensor, or one for each local replica.
TensorArray = Tensor | Sequence[Tensor]


def all_reduce(
    group: Group,
    arrays: Sequence[TensorArray],
    op: str = "sum",
    *,
    out: Sequence[TensorArray] | None = None,
) -> None:
    """Reduce several arrays as if they were one.

    float16 and bfloat16 are added up in float32.

    Args:
        arrays: Tensors; in a group with replicas, lists of a tensor for each local
            replica. Dtypes may differ: there is a call for each.
        op: "sum", "mean", "min", "max" or "prod".
        out: Where the results are written: as `arrays`, which is the default. An array
            may be given several times, as tied weights are.
    """
    if out is None and len(arrays) == 1 and _reduce_in_core(group, arrays[0], op):
        return
    pairs = _local_pairs(arrays, arrays if out is None else out, group)
    for sources, _ in pairs:
        reduction_code_of(op, code_of(sources[0].dtype))
    carrier = ArrayTransport(group.transport, TORCH, 0)
    reduce = partial(carrier.all_reduce, pairs, REDUCTIONS[op])
    group.submit("all_reduce", reduce, False)


def broadcast(group: Group, tensors: Sequence[Tensor], root: int = 0) -> None:
    """Overwrite tensors of any dtype with member `root`'s tensors."""
    owner, _ = group.owner_of(root)
    is_owner = group.rank == owner
    (check if is_owner else check_written)(*tensors)
    carrier = ArrayTransport(group.transport, TORCH, 0)

    def action() -> None:
        for tensor in map(plain, tensors):
            source, targets = (tensor, ()) if is_owner else (None, [tensor])
            carrier.broadcast(source, targets, owner)

    group.submit("broadcast", action, False)


def _reduce_in_core(group: Group, tensor: TensorArray, op: str) -> bool:
    """All-reduce a tensor in place, if it takes no preparation; return whether it was.

    If it was not, nothing has been done.
    """
    if not isinstance(tensor, Tensor) or not tensor.is_cpu:
        return False
    code, reduction = CODES.get(tensor.dtype), REDUCTIONS.get(op)
    if code is None or reduction is None or not tensor.is_contiguous():
        return False
    if tensor.is_neg() or (op == "mean" and tensor.dtype is torch.bool):
        return False
    return group.all_reduce_at(tensor.data_ptr(), tensor.numel(), code, reduction)


def _local_pairs(
    arrays: Sequence[TensorArray], results: Sequence[TensorArray], group: Group
) -> list[tuple[Sequence[Tensor], Sequence[Tensor]]]:
    """Return the local replicas' tensors and the result's tensors of each array.

    Raises:
        TypeError: One is not a dense tensor.
        ValueError: They do not belong together.
    """
    if len(results) != len(arrays):
        raise ValueError(
            f"{len(arrays)} arrays are given, but {len(results)} to write to. "
            "Give one for each."
        )
    pairs = []
    for array, result in zip(arrays, results, strict=True):
        sources = _local_tensors(array, group.num_local_replicas)
        targets = sources
        if result is not array:
            targets = _local_tensors(result, group.num_local_replicas)
            _check_like(targets[0], sources[0])
        check_written(*targets)
        pairs.append((sources, targets))
    return pairs


def _local_tensors(array: TensorArray, replicas: int) -> Sequence[Tensor]:
    """Return the tensors that an array stands for: one for each local replica.

    Raises:
        ValueError: There are more or fewer, or they are not alike.
    """
    tensors = (array,) if isinstance(array, Tensor) else array
    check(*tensors)
    if len(tensors) != replicas:
        raise ValueError(
            f"{len(tensors)} tensors are given, but this instance has {replicas} "
            f"replicas in the group. Give a list of {replicas} tensors for each array."
        )
    for tensor in tensors[1:]:
        _check_like(tensor, tensors[0])
    return tensors


def _check_like(tensor: Tensor, other: Tensor) -> None:
    """Raise ValueError unless two tensors have one shape and dtype."""
    if tensor.shape != other.shape or tensor.dtype != other.dtype:
        raise ValueError(
            f"A tensor is {tensor.dtype} of shape {tuple(tensor.shape)}, and another "
            f"{other.dtype} of shape {tuple(other.shape)}, but they must be alike."
        )
