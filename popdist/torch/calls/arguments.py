"""Checks of the arguments that torch.distributed passes to a process group.

If torch's own groups have a phrase for an error, the message begins with it.
"""

from collections.abc import Sequence
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor

from popdist.torch.calls.work import InvalidArgumentError
from popdist.torch.tensor_rows import check, check_written

T = TypeVar("T")


def refuse(call: str, reason: str) -> NoReturn:
    """Raise InvalidArgumentError for a call."""
    raise InvalidArgumentError(f"popdist {call}: {reason}")


def listed(tensors: Tensor | Sequence[Tensor]) -> list[Tensor]:
    """Return a list of tensors, where one may stand for a list of it."""
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def lists_of(tensors: Any) -> list[Sequence[Tensor]]:
    """Return a list of lists of tensors, where one list may stand for a list of it."""
    return [tensors] if tensors and isinstance(tensors[0], Tensor) else list(tensors)


def check_exchanged(call: str, read: object, written: object) -> None:
    """Check that a call can read tensors, and write its results to others.

    Args:
        read: A tensor, or lists of them, also of lists.
        written: The same.
    """
    try:
        check(*_tensors_in(read))
        check_written(*_tensors_in(written))
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"popdist {call}: {error}") from error


def _tensors_in(value: object) -> list[Tensor]:
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in _tensors_in(item)]
    return [value] if isinstance(value, Tensor) else []


def check_alike(call: str, tensors: Sequence[Tensor], like: Tensor) -> None:
    """Check that tensors have the layout, dtype and shape of another."""
    check_types(call, tensors, like)
    for tensor in tensors:
        if tensor.layout != like.layout:
            refuse(call, f"invalid tensor layout: {tensor.layout} and {like.layout}.")
        if tensor.shape != like.shape:
            shapes = f"{tuple(tensor.shape)} and {tuple(like.shape)}"
            refuse(call, f"invalid tensor size: {shapes}.")


def check_types(call: str, tensors: Sequence[Tensor], like: Tensor) -> None:
    """Check that tensors have the dtype of another."""
    for tensor in tensors:
        if tensor.dtype != like.dtype:
            refuse(call, f"invalid tensor type: {tensor.dtype} and {like.dtype}.")


def check_parts(
    call: str, wholes: Sequence[Tensor], parts: Sequence[Tensor], size: int, phrase: str
) -> None:
    """Check that each tensor has room for so many parts like another.

    Args:
        phrase: How torch says that it has not.
    """
    check_not_empty(call, parts)
    for whole, part in zip(wholes, parts, strict=True):
        check_types(call, [whole], part)
        if whole.numel() != part.numel() * size:
            refuse(
                call,
                f"{phrase}: {whole.numel()} elements for {size} times {part.numel()}.",
            )


def check_repeated(call: str, tensors: Sequence[Tensor]) -> None:
    """Check that no tensor is given twice in a list of different sizes."""
    if len(set(map(id, tensors))) == len(tensors):
        return
    shapes = {tuple(tensor.shape) for tensor in tensors}
    if len(shapes) > 1:
        refuse(
            call,
            f"invalid tensor size: the outputs have {len(shapes)} different shapes, "
            "and one tensor is given for two members. Give each its own.",
        )


def check_not_empty(call: str, tensors: Sequence[object], which: str = "") -> None:
    """Check that there are tensors."""
    if not tensors:
        refuse(call, f"requires non-empty {which}tensor list.")


def single(call: str, values: Sequence[T], kind: str) -> T:
    """Return the only item of a list that must have one."""
    if len(values) != 1:
        refuse(call, f"requires a single-element {kind}, not {len(values)}.")
    return values[0]


def check_dense(call: str, tensors: Sequence[Tensor]) -> None:
    """Check the tensors of a coalesced call. All of them go in one piece."""
    check_not_empty(call, tensors)
    first = tensors[0]
    for index, tensor in enumerate(tensors):
        if tensor.layout != first.layout:
            refuse(call, f"invalid tensor layout at index {index}: {tensor.layout}.")
        if tensor.dtype != first.dtype:
            refuse(call, "tensors must all have the same type.")
    if first.layout is not torch.strided:
        refuse(call, f"unsupported layout: {first.layout}. Call to_dense() first.")
