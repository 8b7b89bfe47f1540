"""Operations that PopTorch adds to torch, computed on the CPU."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .enums import MatMulSerializationMode
from .errors import Error
from .execution import current

_REDUCTIONS = ("sum", "mean", "none")


def identity_loss(x: torch.Tensor, reduction: str | int) -> torch.Tensor:
    """Return the loss that training starts from, reduced.

    Args:
        reduction: "sum", "mean" or "none", or its index in this list.

    Raises:
        Error: There is no such reduction.
    """
    index = _REDUCTIONS.index(reduction) if reduction in _REDUCTIONS else reduction
    if index not in range(len(_REDUCTIONS)):
        raise Error(
            f"Unsupported reduction type {reduction!r}. "
            f"Use one of {', '.join(_REDUCTIONS)}."
        )
    loss = (x.sum, x.mean, lambda: x)[int(index)]()
    if execution := current():
        execution.losses.append(loss)
    return loss


def nop(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor."""
    return tensor


def ipu_print_tensor(
    tensor: torch.Tensor,
    title: str = "",
    print_gradient: bool = True,
    summarise_threshold: int = 1000,
    edge_items: int = 3,
    max_line_width: int = 80,
    digits: int = 4,
) -> torch.Tensor:
    """Print the tensor, and its gradient, on stderr when they are computed.

    Args:
        summarise_threshold: Larger tensors are printed in part.
        edge_items: How many of them at each end of a dimension.
        digits: How many digits of each.
    """

    layout = {
        "precision": digits,
        "threshold": summarise_threshold,
        "edgeitems": edge_items,
        "linewidth": max_line_width,
    }

    def show(name: str, value: torch.Tensor) -> None:
        with torch._tensor_str.printoptions(**layout):
            sys.stderr.write(f"{name}: {value.detach()}\n")

    name = title or "Print"
    show(name, tensor)
    if print_gradient and tensor.requires_grad:
        # A view, so that the hook sees the gradient of this use alone.
        tensor = tensor.view_as(tensor)
        tensor.register_hook(  # type: ignore[no-untyped-call]
            lambda grad: show(f"Gradient_{name}", grad)
        )
    return tensor


def for_loop(
    count: int, body: Callable[..., Any], inputs: Sequence[torch.Tensor]
) -> Sequence[torch.Tensor]:
    """Call body(*inputs) so often, each time with what it returned before.

    The body gets copies: what it changes in place stays as it was outside.

    Raises:
        ValueError: The inputs are not a list of tensors.
        Error: The body returns other tensors than it takes, or a model is trained.
    """
    execution = current()
    if execution is not None and execution.training:
        raise Error(
            "poptorch.for_loop() is only supported in inference models. Write a loop "
            "of Python in what is trained."
        )
    mismatch = None if isinstance(inputs, list) else "Object is not list"
    for index, value in enumerate(inputs if isinstance(inputs, list) else ()):
        if not torch.is_tensor(value):
            mismatch = f"Object contained in list at index {index} is not torch.tensor"
    if mismatch is not None:
        raise ValueError(
            f"poptorch.for_loop expects its input tensors to be a list ({mismatch})."
        )
    values = list(inputs)
    layouts = [(value.shape, value.dtype) for value in values]
    for _ in range(count):
        returned = body(*(value.clone() for value in values))
        results = list(returned) if isinstance(returned, list | tuple) else [returned]
        if [(result.shape, result.dtype) for result in results] != layouts:
            raise Error(
                "The body of poptorch.for_loop must return as many tensors as it "
                "takes, of the same shapes and dtypes."
            )
        values = results
    return values


def cond(
    condition: torch.Tensor,
    then_body: Callable[..., Any],
    then_inps: list[torch.Tensor],
    else_body: Callable[..., Any],
    else_inps: list[torch.Tensor],
) -> tuple[torch.Tensor, ...]:
    """Return what one of two functions returns, as the condition says.

    Raises:
        ValueError: The inputs of a function are no list.
    """
    if not isinstance(then_inps, list) or not isinstance(else_inps, list):
        raise ValueError(
            "poptorch.cond expects then_inps and else_inps to be lists of tensors."
        )
    returned = then_body(*then_inps) if bool(condition) else else_body(*else_inps)
    return tuple(returned) if isinstance(returned, list | tuple) else (returned,)


def serializedMatMul(
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    mode: MatMulSerializationMode,
    factor: int = 0,
    keep_precision: bool = False,
) -> torch.Tensor:
    """Return the product of two matrices, which an IPU computes in parts.

    Raises:
        Error: The mode is unknown, or the factor does not divide its dimension.
    """
    if not isinstance(mode, MatMulSerializationMode):
        raise Error(f"{mode!r} is not a poptorch.MatMulSerializationMode.")
    lengths = {
        MatMulSerializationMode.InputChannels: lhs.shape[-2] if lhs.dim() > 1 else 1,
        MatMulSerializationMode.ReducingDim: lhs.shape[-1],
        MatMulSerializationMode.OutputChannels: rhs.shape[-1],
    }
    length = lengths.get(mode, 0)
    if mode != MatMulSerializationMode.Disabled and (factor < 1 or length % factor):
        raise Error(
            f"factor is {factor}, but must divide the {length} of the dimension that "
            f"{mode} serialises."
        )
    return torch.matmul(lhs, rhs)


def set_available_memory(
    tensor: torch.Tensor, available_memory_proportion: float
) -> torch.Tensor:
    """Return the tensor; the proportion is for the temporary memory of an IPU.

    Raises:
        Error: It is not from 0 to 1.
    """
    if not 0 <= available_memory_proportion <= 1:
        raise Error(
            f"available_memory_proportion is {available_memory_proportion}, but must "
            "be from 0 to 1."
        )
    return tensor


# Any: tensors, or lists, tuples and dictionaries of them, are returned as they are.
def set_overlap_for_input(input_tensors: Any, mode: Any) -> Any:
    """Return the inputs; the mode is for an IPU's copies of them."""
    return input_tensors


def set_overlap_for_output(output_tensors: Any, mode: Any) -> Any:
    """Return the outputs; the mode is for an IPU's copies of them."""
    return output_tensors


def recomputationCheckpoint(*tensors: Any) -> Any:
    """Return the tensors; an IPU keeps them for the backward pass."""
    return tensors[0] if len(tensors) == 1 else tensors


def dynamic_slice(
    tensor: torch.Tensor, dim: int, start: torch.Tensor, size: int, step: int = 1
) -> torch.Tensor:
    """Return every step-th of `size` elements of a dimension, from a computed start."""
    begin = int(start)
    index = [slice(None)] * tensor.dim()
    index[dim] = slice(begin, begin + size, step)
    return tensor[tuple(index)]


def dynamic_update(
    input: torch.Tensor, src: torch.Tensor, dim: int, start: torch.Tensor, size: int
) -> torch.Tensor:
    """Return the input with `size` elements of a dimension replaced by src."""
    begin = int(start)
    return torch.slice_scatter(input, src, dim, begin, begin + size)


def isRunningOnIpu() -> bool:
    """Return whether a forward pass of an executor runs in this thread."""
    return current() is not None


def ipuHardwareIsAvailable(num_ipus: int = 1) -> bool:
    """Return True: the CPU stands in for any number of IPUs."""
    return num_ipus >= 1


def hasMlirSupportOnPlatform() -> bool:
    """Return False: nothing here is compiled by MLIR."""
    return False


def ipuHardwareVersion() -> int:
    """Return the version of the emulated IPU."""
    return 2
