"""Operators that resize: each axis after the other, by the nearest element or two."""

from collections.abc import Callable

import torch
from torch import Tensor

from .call import Call, Form, Operator, integers

# Returns the position of a result's element in the input from its index, the sizes of
# input and result, and the scale.
_PLACES: dict[str, Callable[[Tensor, int, int, float], Tensor]] = {
    "align_corners": lambda index, old, new, scale: (
        index * ((old - 1) / (new - 1)) if new > 1 else index
    ),
    "asymmetric": lambda index, old, new, scale: index / scale,
    "half_pixel": lambda index, old, new, scale: (index + 0.5) / scale - 0.5,
    "pytorch_half_pixel": lambda index, old, new, scale: (
        (index + 0.5) / scale - 0.5 if new > 1 else index
    ),
    "tf_half_pixel_for_nn": lambda index, old, new, scale: (index + 0.5) / scale,
}
_ROUNDINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "ceil": torch.ceil,
    "floor": torch.floor,
    "round_prefer_ceil": lambda place: torch.floor(place + 0.5),
    "round_prefer_floor": lambda place: torch.ceil(place - 0.5),
}


def _refusal(form: Form) -> str:
    mode = form.attributes.get("mode")
    if mode not in ("nearest", "linear"):
        return f"has no mode {mode} here. Use nearest or linear."
    places = form.attributes.get("coordinate_transformation_mode", "asymmetric")
    if places not in _PLACES:
        return (
            f"has no coordinate_transformation_mode {places} here. Use one of "
            f"{', '.join(_PLACES)}."
        )
    return ""


def _resize(call: Call) -> Tensor:
    x = call[0]
    # Since version 11 the region for cropping comes before the scales.
    at = 2 if len(call.inputs) > 2 else 1
    scales = call.get("scales") or (call[at].tolist() if call.has(at) else [])
    if scales:
        sizes = [int(n * scale) for n, scale in zip(x.shape, scales, strict=True)]
    else:
        sizes = integers(call[3])
        scales = [new / old for new, old in zip(sizes, x.shape, strict=True)]
    for axis, (size, scale) in enumerate(zip(sizes, scales, strict=True)):
        if scale != 1:
            x = _resize_axis(call, x, axis, size, scale)
    return x


def _resize_axis(call: Call, x: Tensor, axis: int, size: int, scale: float) -> Tensor:
    old = x.shape[axis]
    # The versions before 11 have neither of these attributes.
    place_of = _PLACES[call.get("coordinate_transformation_mode", "asymmetric")]
    places = place_of(torch.arange(size, dtype=torch.float32), old, size, scale)
    if call.get("mode") == "nearest":
        places = _ROUNDINGS[call.get("nearest_mode", "floor")](places)
        return x.index_select(axis, places.clamp(0, old - 1).long())
    places = places.clamp(0, old - 1)
    lower = places.long()
    shape = [-1 if i == axis else 1 for i in range(x.dim())]
    share = (places - lower).reshape(shape)
    below = x.index_select(axis, lower)
    above = x.index_select(axis, (lower + 1).clamp(max=old - 1))
    return torch.lerp(below.float(), above.float(), share).to(x.dtype)


ONNX = {
    "Resize": Operator(_resize, (1, 2, 3), _refusal),
    "Upsample": Operator(_resize, (1,), _refusal),
}
