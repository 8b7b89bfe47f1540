"""torch.distributed's reductions, as the engine's or as calculations of ours."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from popdist.engine.calls.collective import run_step
from popdist.engine.group import Group
from popdist.torch import tensors
from popdist.torch.calls.work import InvalidArgumentError
from popdist.torch.tensors.tensor_rows import CODES

# A reduction: its kind, as torch numbers it, and the factor of PREMUL_SUM.
_Kind = Any
# Any, because the types of torch lack some of its attributes.
_OPS: Any = dist.ReduceOp
_Calculation = Callable[[Tensor, Tensor], Tensor]

ENGINE_OPS: dict[_Kind, str] = {
    _OPS.SUM: "sum",
    _OPS.AVG: "mean",
    _OPS.PRODUCT: "prod",
    _OPS.MIN: "min",
    _OPS.MAX: "max",
}
_BITWISE: dict[_Kind, _Calculation] = {
    _OPS.BAND: torch.bitwise_and,
    _OPS.BOR: torch.bitwise_or,
    _OPS.BXOR: torch.bitwise_xor,
}
# A complex number is reduced as two real ones.
_FOR_COMPLEX = _OPS.SUM, _OPS.AVG, _OPS.PREMUL_SUM
# How many bytes of each member go at once where all of them are gathered.
_PIECE_BYTES = 1 << 20


def engine_op(op: Any, dtype: torch.dtype) -> str | None:
    """Return the engine's name of a reduction, None if it has no such one.

    Raises:
        InvalidArgumentError: Tensors of this dtype cannot be reduced so.
    """
    kind = getattr(op, "op", op)
    name = ENGINE_OPS.get(kind)
    if name == "mean" and dtype is torch.bool:
        raise InvalidArgumentError(
            "popdist: AVG of torch.bool would not be a bool. Convert the tensor first."
        )
    if name is None and kind in _BITWISE and dtype.is_floating_point:
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
    elif name is None and kind not in _BITWISE:
        raise InvalidArgumentError(
            f"popdist: {kind} is not a reduction of this backend."
        )
    return name


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


def reduce_otherwise(group: Group, tensor: Tensor, op: Any) -> None:
    """All-reduce a tensor in place, by a reduction that the engine does not have."""
    kind = getattr(op, "op", op)
    if kind == _OPS.PREMUL_SUM:
        tensor.detach().mul_(_factor_of(op))
        run_step(tensors.all_reduce, group, [tensor], "sum")
        return
    calculate = _BITWISE[kind]
    whole = tensor.detach().contiguous()
    flat = whole.view(-1)
    piece = max(1, _PIECE_BYTES // tensor.element_size())
    for begin in range(0, flat.numel(), piece):
        part = flat[begin : begin + piece]
        gathered = torch.empty((group.size, part.numel()), dtype=part.dtype)
        run_step(tensors.all_gather, group, part, gathered)
        total = gathered[0]
        for other in gathered[1:]:
            total = calculate(total, other)
        part.copy_(total)
    if whole.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(whole)


def reduce_sparse(group: Group, own: Sequence[Tensor]) -> None:
    """Add up sparse tensors of all members, and write the sum to each of them."""
    local = own[0].coalesce()
    for other in own[1:]:
        local = (local + other).coalesce()
    indices = run_step(tensors.all_gather_varied, group, local.indices())
    values = run_step(tensors.all_gather_varied, group, local.values())
    total = torch.sparse_coo_tensor(
        torch.cat(indices, 1), torch.cat(values), local.shape, check_invariants=True
    ).coalesce()
    # Tensors that require gradients are written to, too.
    with torch.no_grad():
        for tensor in own:
            tensor.copy_(total)
