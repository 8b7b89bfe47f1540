"""torch.distributed's reductions: the engine's, and calculations of ours."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from popdist.engine.calls.array_transport import ArrayTransport, header_of
from popdist.engine.spec.dtypes import REDUCTIONS
from popdist.engine.spec.operations import Operation
from popdist.torch.calls.work import InvalidArgumentError
from popdist.torch.tensor_rows import CODES, TORCH, readable

# A reduction: its kind, as torch numbers it, and the factor of PREMUL_SUM.
_Kind = Any
# Any, because the types of torch lack some of its attributes.
_OPS: Any = dist.ReduceOp
_Calculation = Callable[[Tensor, Tensor], Tensor]

ENGINE_OPS: dict[_Kind, int] = {
    _OPS.SUM: REDUCTIONS["sum"],
    _OPS.AVG: REDUCTIONS["mean"],
    _OPS.PRODUCT: REDUCTIONS["prod"],
    _OPS.MIN: REDUCTIONS["min"],
    _OPS.MAX: REDUCTIONS["max"],
}
_BITWISE: dict[_Kind, _Calculation] = {
    _OPS.BAND: torch.bitwise_and,
    _OPS.BOR: torch.bitwise_or,
    _OPS.BXOR: torch.bitwise_xor,
}
# A complex number is reduced as two real ones.
_FOR_COMPLEX = _OPS.SUM, _OPS.AVG, _OPS.PREMUL_SUM
# How many bytes of each member go at once where all of them are gathered.
_GATHERED_BYTES = 1 << 20


def kind_of(op: Any) -> _Kind:
    """Return the kind of a reduction."""
    return getattr(op, "op", op)


def check_reduction(op: Any, dtype: torch.dtype) -> None:
    """Check that tensors of a dtype can be reduced in this way.

    Raises:
        InvalidArgumentError: They cannot.
    """
    kind = kind_of(op)
    if kind == _OPS.AVG and dtype is torch.bool:
        raise InvalidArgumentError(
            "popdist: AVG of torch.bool would not be a bool. Convert the tensor first."
        )
    if kind in _BITWISE and dtype.is_floating_point:
        raise InvalidArgumentError(
            f"popdist: {kind.name} is for integers and bools, but the tensor is "
            f"{dtype}."
        )
    if dtype.is_complex and kind not in _FOR_COMPLEX:
        raise InvalidArgumentError(
            f"popdist: {kind.name} is for real numbers, but the tensor is {dtype}. Use "
            "SUM or AVG, or reduce torch.view_as_real() of it."
        )
    if kind not in _BITWISE and dtype.to_real() not in CODES:
        raise InvalidArgumentError(
            f"popdist: the tensor is {dtype}, which has no sums, products, minima or "
            "maxima. Convert it first."
        )
    if kind == _OPS.PREMUL_SUM:
        _check_factor(_factor_of(op), dtype)
    elif kind not in ENGINE_OPS and kind not in _BITWISE:
        raise InvalidArgumentError(
            f"popdist: {kind} is not a reduction of this backend."
        )


def _factor_of(op: Any) -> Any:
    """Return the factor of a PREMUL_SUM. torch 2.10 has no attribute for it."""
    return op.factor if hasattr(op, "factor") else op.__getstate__()[1]


def _check_factor(factor: Any, dtype: torch.dtype) -> None:
    try:
        torch.ones(1, dtype=dtype).mul_(factor)
    except RuntimeError as error:
        raise InvalidArgumentError(
            f"popdist: PREMUL_SUM cannot multiply {dtype} by {factor}: {error}."
        ) from error


def check_sparse(op: Any, tensor: Tensor) -> None:
    """Check that sparse tensors like this one can be added up.

    Raises:
        InvalidArgumentError: They cannot.
    """
    if op != _OPS.SUM:
        raise InvalidArgumentError(
            f"popdist allreduce: unsupported reduction operation of sparse: {op}."
        )
    # torch.distributed passes real views of a complex tensor, and the sum would not
    # reach the caller's tensor.
    base = tensor if tensor._base is None else tensor._base
    if tensor.layout is not torch.sparse_coo or base.is_complex():
        raise InvalidArgumentError(
            "popdist allreduce: unsupported sparse tensor: only real ones in the "
            f"layout torch.sparse_coo are added up, and this is {tensor.layout}, or "
            "complex. Call to_dense() first."
        )


def reduce_each(
    carrier: ArrayTransport[Tensor], size: int, tensors: Sequence[Tensor], op: Any
) -> None:
    """All-reduce each tensor in place, in a group of so many members."""
    kind = kind_of(op)
    if kind in _BITWISE:
        for tensor in tensors:
            _reduce_bits(carrier, size, tensor, _BITWISE[kind])
        return
    if kind == _OPS.PREMUL_SUM:
        kind = _OPS.SUM
        for tensor in tensors:
            tensor.detach().mul_(_factor_of(op))
    rows = [[tensor] for tensor in tensors]
    carrier.all_reduce(list(zip(rows, rows, strict=True)), ENGINE_OPS[kind])


def _reduce_bits(
    carrier: ArrayTransport[Tensor], size: int, tensor: Tensor, calculate: _Calculation
) -> None:
    whole = tensor.detach().contiguous()
    step = max(1, _GATHERED_BYTES // tensor.element_size())
    for own in torch.split(whole.view(-1), step):
        gathered = torch.empty((size, own.numel()), dtype=own.dtype)
        carrier.gather(own, [gathered], [own.nbytes] * size, -1)
        total = gathered[0]
        for other in gathered[1:]:
            total = calculate(total, other)
        own.copy_(total)
    if whole.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(whole)


def reduce_sparse(
    carrier: ArrayTransport[Tensor], size: int, own: Sequence[Tensor]
) -> None:
    """Add up sparse tensors of all members, and write the sum to each of them."""
    local = own[0].coalesce()
    for other in own[1:]:
        local = (local + other).coalesce()

    # Any: all members get a result.
    def gathered(tensor: Tensor) -> Any:
        headers, counts = [header_of(TORCH, tensor)], [1] * size
        call = Operation.ALL_GATHER, [readable(tensor)], headers, counts, None
        return carrier.gather_described(*call)

    indices, values = gathered(local.indices()), gathered(local.values())
    total = torch.sparse_coo_tensor(
        torch.cat(indices, 1), torch.cat(values), local.shape, check_invariants=True
    ).coalesce()
    # Tensors that require gradients are written to, too.
    with torch.no_grad():
        for tensor in own:
            tensor.copy_(total)


def as_real(tensor: Tensor) -> Tensor:
    """Return a complex tensor's memory as real numbers, and others as they are."""
    if tensor.is_conj():
        raise InvalidArgumentError(
            "popdist: the tensor is a conjugate view. Call resolve_conj() first."
        )
    return torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor
