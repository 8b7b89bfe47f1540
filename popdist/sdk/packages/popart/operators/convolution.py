"""Convolutions and pooling."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from ..errors import popart_exception
from .call import Call, Form, Operator, torch_pads

_CONVOLUTIONS: dict[int, Callable[..., torch.Tensor]] = {
    1: F.conv1d,
    2: F.conv2d,
    3: F.conv3d,
}
_TRANSPOSED: dict[int, Callable[..., torch.Tensor]] = {
    1: F.conv_transpose1d,
    2: F.conv_transpose2d,
    3: F.conv_transpose3d,
}
_MAXIMA: dict[int, Callable[..., torch.Tensor]] = {
    1: F.max_pool1d,
    2: F.max_pool2d,
    3: F.max_pool3d,
}
_AVERAGES: dict[int, Callable[..., torch.Tensor]] = {
    1: F.avg_pool1d,
    2: F.avg_pool2d,
    3: F.avg_pool3d,
}


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
    x: torch.Tensor, pads: Sequence[int], value: float = 0.0
) -> tuple[torch.Tensor, list[int]]:
    """Return an input and the symmetric padding that is left for torch to add."""
    rank = len(pads) // 2
    if list(pads[:rank]) == list(pads[rank:]):
        return x, list(pads[:rank])
    return F.pad(x, torch_pads(pads), value=value), [0] * rank


def _convolve(call: Call) -> torch.Tensor:
    weight, bias = call[1], call.optional(2)
    strides, dilations, pads = _geometry(call, weight.shape[2:])
    x, padding = _padded(call[0], pads)
    return _CONVOLUTIONS[weight.dim() - 2](
        x, weight, bias, strides, padding, dilations, call.get("group", 1)
    )


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


def _convolve_transposed(call: Call) -> torch.Tensor:
    weight, bias = call[1], call.optional(2)
    strides, dilations, pads = _geometry(call, weight.shape[2:])
    rank = weight.dim() - 2
    extra = list(call.get("output_padding") or [0] * rank)
    return _TRANSPOSED[rank](
        call[0],
        weight,
        bias,
        strides,
        pads[:rank],
        extra,
        call.get("group", 1),
        dilations,
    )


def _max_pool(call: Call) -> torch.Tensor:
    kernel = call.get("kernel_shape")
    strides, dilations, pads = _geometry(call, kernel)
    x, padding = call[0], pads[: len(kernel)]
    # torch pads by less than half of the kernel, and the same at both sides.
    if pads[len(kernel) :] != padding or any(
        2 * pad > width for pad, width in zip(padding, kernel, strict=True)
    ):
        x, padding = F.pad(x, torch_pads(pads), value=-torch.inf), [0] * len(kernel)
    return _MAXIMA[len(kernel)](
        x, kernel, strides, padding, dilations, bool(call.get("ceil_mode", 0))
    )


def _average_pool(call: Call) -> torch.Tensor:
    kernel = call.get("kernel_shape")
    strides, _, pads = _geometry(call, kernel)
    x, counts_padding = call[0], bool(call.get("count_include_pad", 0))
    pool = _AVERAGES[len(kernel)]
    ceil = bool(call.get("ceil_mode", 0))
    rank = len(kernel)
    if pads[:rank] == pads[rank:]:
        return pool(x, kernel, strides, pads[:rank], ceil, counts_padding)
    padded, none = _padded(x, pads)
    total = pool(padded, kernel, strides, none, ceil)
    if counts_padding:
        return total
    counted, _ = _padded(torch.ones_like(x), pads)
    return total / pool(counted, kernel, strides, none, ceil)


def _spatial(x: torch.Tensor) -> list[int]:
    return list(range(2, x.dim()))


ONNX = {
    "AveragePool": Operator(_average_pool),
    "Conv": Operator(_convolve),
    "ConvTranspose": Operator(_convolve_transposed, refusal=_transposed_refusal),
    "GlobalAveragePool": Operator.of(lambda x: x.mean(_spatial(x), keepdim=True)),
    "GlobalMaxPool": Operator.of(lambda x: x.amax(_spatial(x), keepdim=True)),
    "MaxPool": Operator(_max_pool, refusal=_pooling_refusal),
}
