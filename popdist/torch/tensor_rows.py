"""From torch tensors to the rows that a transport carries, by their addresses."""

from collections.abc import Sequence
from functools import partial
from math import prod

import torch
from torch import Tensor

from popdist.engine.group import Group
from popdist.engine.rows import BYTES, Extent, Framework, Rows
from popdist.engine.spec.dtypes import DTYPES, item_bytes_of

# The numbers of dtypes in headers are their indices here.
_DTYPES = sorted(
    (value for value in vars(torch).values() if isinstance(value, torch.dtype)), key=str
)
CODES = {
    getattr(torch, name): code for name, code in DTYPES.items() if hasattr(torch, name)
}


def code_of(dtype: torch.dtype) -> int:
    """Return the engine's code of a dtype that it can reduce.

    Raises:
        TypeError: It cannot.
    """
    code = CODES.get(dtype)
    if code is None:
        raise TypeError(
            f"The tensor's dtype is {dtype}, but a reduction takes {', '.join(DTYPES)}."
            " Convert the tensor first, a complex one with torch.view_as_real."
        )
    return code


def check(*tensors: Tensor) -> None:
    """Raise an error unless these are dense tensors in the CPU's memory.

    Raises:
        TypeError: One is not a dense tensor.
        ValueError: One lies elsewhere.
    """
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            raise TypeError(
                f"A {type(tensor).__name__} is given, but a tensor is expected."
            )
        if tensor.layout is not torch.strided:
            raise TypeError(
                f"The tensor's layout is {tensor.layout}, but only dense tensors can "
                "be exchanged. Call to_dense() first."
            )
        if not tensor.is_cpu:
            raise ValueError(
                f"The tensor is on {tensor.device}, but popdist exchanges tensors in "
                "the CPU's memory. Call cpu() first."
            )


def check_written(*tensors: Tensor) -> None:
    """Raise an error unless a call can write its results to these tensors.

    Raises:
        TypeError: One is not a dense tensor.
        ValueError: One lies elsewhere, or has one place in memory for several elements.
    """
    check(*tensors)
    for tensor in tensors:
        if 0 in tensor.stride() and tensor.numel() > 1 and _is_expanded(tensor):
            raise ValueError(
                "The tensor is expanded: several of its elements share one place in "
                "memory, so a result cannot be written to it. Call contiguous() first."
            )


def _is_expanded(tensor: Tensor) -> bool:
    lengths = zip(tensor.shape, tensor.stride(), strict=True)
    return any(stride == 0 and length > 1 for length, stride in lengths)


def readable(tensor: Tensor) -> Tensor:
    """Return the tensor itself if it is a row, or a copy that is one."""
    if is_row(tensor):
        return plain(tensor)
    return tensor.detach().resolve_neg().resolve_conj().contiguous()


def is_row(tensor: Tensor) -> bool:
    """Return whether the elements of a tensor lie in memory in their order."""
    return tensor.is_contiguous() and not (tensor.is_neg() or tensor.is_conj())


def plain(tensor: Tensor) -> Tensor:
    """Return the tensor, or a view of its memory that autograd does not see."""
    return tensor.detach() if tensor.requires_grad else tensor


def flat_bytes(tensor: Tensor) -> Tensor:
    """Return the bytes of a contiguous tensor."""
    # torch calls one element contiguous whatever its stride is, but does not view it.
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def empty_in(group: Group, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return a new tensor in the arena of a group.

    all_reduce of such tensors, on all members, copies nothing in or out. Where the
    machine does not let memory be shared so, it is an ordinary tensor.
    """
    nbytes = prod(shape) * dtype.itemsize
    if not nbytes:
        return torch.empty(tuple(shape), dtype=dtype)
    # The tensor keeps the array, and so its place in the arena.
    memory = torch.from_numpy(group.empty(nbytes, "uint8"))
    return memory.view(dtype).view(tuple(shape))


def _extent_of(tensor: Tensor) -> Extent:
    begin, in_order = tensor.data_ptr(), is_row(tensor)
    if in_order or not tensor.numel():
        return begin, begin + tensor.nbytes, in_order
    # torch has no negative strides.
    last = sum(
        (length - 1) * stride
        for length, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return begin, begin + (last + 1) * tensor.element_size(), in_order


def _exchanged_row(tensor: Tensor) -> Rows:
    """Return the row of a contiguous tensor, as bytes if the engine lacks its dtype."""
    code = CODES.get(tensor.dtype, BYTES)
    count = tensor.nbytes // item_bytes_of(code)
    return Rows((tensor.data_ptr(),), (count,), code, tensor)


def _elements(
    memory: Tensor, begin: int, dtype: torch.dtype, shape: Sequence[int]
) -> Tensor:
    part = memory[begin : begin + prod(shape) * dtype.itemsize]
    if part.storage_offset() % dtype.itemsize:
        part = part.clone()
    return part.view(dtype).view(tuple(shape))


def _copy(source: Tensor, target: Tensor) -> None:
    target.detach().copy_(source)


TORCH: Framework[Tensor] = Framework(
    address_of=Tensor.data_ptr,
    extent_of=_extent_of,
    # Members need not agree on the number of axes, as in torch's own groups.
    shape_and_code=lambda tensor: ((tensor.numel(),), code_of(tensor.dtype)),
    exchanged_row=_exchanged_row,
    readable=readable,
    new_bytes=partial(torch.empty, dtype=torch.uint8),
    empty_like=torch.empty_like,
    elements=_elements,
    copy=_copy,
    number_of_dtype=_DTYPES.index,
    dtype_of_number=_DTYPES.__getitem__,
)
