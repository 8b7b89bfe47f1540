"""The reductions of an engine group on one tensor that takes no preparation."""

from torch import Tensor

from popdist.engine.group import Group
from popdist.engine.handle import Handle
from popdist.torch.tensors.tensor_rows import CODES


def reduce_in_place(group: Group, tensor: Tensor, reduction: int) -> bool:
    """All-reduce one tensor in place, if that takes no preparation.

    Args:
        reduction: The engine's code. That of a mean is not for bools.

    Returns:
        Whether the tensor was reduced. If not, nothing was done: call all_reduce().
    """
    code = _plain_code(tensor)
    return code is not None and group.all_reduce_at(
        tensor.data_ptr(), tensor.numel(), code, reduction
    )


def reduce_in_place_deferred(
    group: Group, tensor: Tensor, reduction: int
) -> Handle[None] | None:
    """Begin to all-reduce one tensor in place, deferred, if it takes no preparation.

    As reduce_in_place(). None is returned where nothing was done.
    """
    code = _plain_code(tensor)
    if code is None:
        return None
    return group.deferred_all_reduce_at(
        tensor.data_ptr(), tensor.numel(), code, reduction, tensor
    )


def _plain_code(tensor: Tensor) -> int | None:
    """Return the engine's code of a tensor whose memory it can reduce, or None."""
    if not tensor.is_cpu or not tensor.is_contiguous() or tensor.is_neg():
        return None
    return CODES.get(tensor.dtype)
