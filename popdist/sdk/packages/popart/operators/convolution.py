"""Convolutions and pooling."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import popart_exception
from .call import Call, Form, Operator, torch_pads


def _function(name: str, rank: int) -> Callable[..., Tensor]:
    """Return torch's function for that many spatial dimensions."""
    function: Callable[..., Tensor] = getattr(F, f"{name}{rank}d")
    return function


def _geometry(
    call: Call, kernel: Sequence[int]
) -> tuple[list[int], list[int], list[int]]:
    """Return strides, dilations and pads, with those that `auto_pad` stands for.

    Raises:
        popart_exception: Their lengths do not fit.
    """
    rank = len(kernel)
    strides = list(call.get("strides") or [1] * rank)
    dilations = list(call.get("dilations") or [1] * rank)
    pads = list(call.get("pads") or [0] * (2 * rank))
    for name, numbers in (("strides", strides), ("dilations", dilations)):
        if len(numbers) != rank:
            raise popart_exception(
                f"Length of {name} vector {len(numbers)} != number of spatial "
                f"dimensions {rank}"
            )
    if len(pads) != 2 * rank:
        raise popart_exception(
            f"Padding vector (length {len(pads)}) does not have 2 values for each "
            f"spatial dimension {rank}"
        )
    mode = call.get("auto_pad", "NOTSET")
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        pads = _same(call[0].shape[2:], kernel, strides, dilations, mode)
    return strides, dilations, pads


def _same(
    shape: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    mode: str,
) -> list[int]:
    """Return the pads with which strides alone divide the shape."""
    before, after = [], []
    for size, width, stride, dilation in zip(
        shape, kernel, strides, dilations, strict=True
    ):
        steps = -(-size // stride)
        total = max((steps - 1) * stride + (width - 1) * dilation + 1 - size, 0)
        less, more = total // 2, total - total // 2
        before.append(less if mode == "SAME_UPPER" else more)
        after.append(more if mode == "SAME_UPPER" else less)
    return [*before, *after]


def _padded(
    x: Tensor, pads: Sequence[int], value: float = 0.0
) -> tuple[Tensor, list[int]]:
    """Return an input and the symmetric padding that is left for torch to add."""
    rank = len(pads) // 2
    if list(pads[:rank]) == list(pads[rank:]):
        return x, list(pads[:rank])
    return F.pad(x, torch_pads(pads), value=value), [0] * rank


def _convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, call: Call
) -> Tensor:
    strides, dilations, pads = _geometry(call, weight.shape[2:])
    x, padding = _padded(x, pads)
    convolve = _function("conv", weight.dim() - 2)
    return convolve(x, weight, bias, strides, padding, dilations, call.get("group"))


def _convolve_transposed(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, call: Call
) -> Tensor:
    strides, dilations, pads = _geometry(call, weight.shape[2:])
    rank = weight.dim() - 2
    extra, group = call.get("output_padding") or [0] * rank, call.get("group")
    convolve = _function("conv_transpose", rank)
    return convolve(x, weight, bias, strides, pads[:rank], extra, group, dilations)


def _transposed_refusal(form: Form) -> str:
    pads = list(form.attributes.get("pads") or [])
    half = len(pads) // 2
    if not form.attributes.get("output_shape") and pads[:half] == pads[half:]:
        return ""
    return (
        "with output_shape or with different pads at both sides is not available here. "
        "Use the same pads, and output_padding."
    )


def _pooling_refusal(form: Form) -> str:
    if form.outputs == 1:
        return ""
    return "returns no indices here. Give it num_outputs=1."


def _max_pool(x: Tensor, kernel_shape: list[int], *, call: Call) -> Tensor:
    strides, dilations, pads = _geometry(call, kernel_shape)
    rank = len(kernel_shape)
    padding = pads[:rank]
    # torch pads by less than half of the kernel, and the same at both sides.
    if pads[rank:] != padding or any(
        2 * pad > width for pad, width in zip(padding, kernel_shape, strict=True)
    ):
        x, padding = F.pad(x, torch_pads(pads), value=-torch.inf), [0] * rank
    pool, ceil = _function("max_pool", rank), bool(call.get("ceil_mode"))
    return pool(x, kernel_shape, strides, padding, dilations, ceil)


def _average_pool(x: Tensor, kernel_shape: list[int], *, call: Call) -> Tensor:
    strides, _, pads = _geometry(call, kernel_shape)
    counts_padding, ceil = bool(call.get("count_include_pad")), call.get("ceil_mode")
    pool = _function("avg_pool", len(kernel_shape))
    padded, padding = _padded(x, pads)
    how = (kernel_shape, strides, padding, bool(ceil))
    if padded is x or counts_padding:
        return pool(padded, *how, counts_padding)
    counted, _ = _padded(torch.ones_like(x), pads)
    return pool(padded, *how) / pool(counted, *how)


def _spatial(x: Tensor) -> list[int]:
    return list(range(2, x.dim()))


ONNX = {
    "AveragePool": Operator.of(_average_pool),
    "Conv": Operator.of(_convolve),
    "ConvTranspose": Operator.of(_convolve_transposed, refusal=_transposed_refusal),
    "GlobalAveragePool": Operator.of(lambda x: x.mean(_spatial(x), keepdim=True)),
    "GlobalMaxPool": Operator.of(lambda x: x.amax(_spatial(x), keepdim=True)),
    "MaxPool": Operator.of(_max_pool, refusal=_pooling_refusal),
}
