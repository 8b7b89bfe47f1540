"""Operators that change shapes, or select, place and create elements."""

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..enums import DataType, InitType
from ..errors import popart_exception
from ..tensor_info import BY_NAME
from .call import Call, Operator, integers, number, torch_pads

_PAD_MODES = {"constant": "constant", "reflect": "reflect", "edge": "replicate"}

# Inputs, or attributes in older versions.
_Integers = Tensor | Sequence[int]


def _reshape(x: Tensor, shape: _Integers = ()) -> Tensor:
    # A zero copies the size of the same dimension.
    return x.reshape(
        [x.shape[i] if n == 0 else n for i, n in enumerate(integers(shape))]
    )


def _flatten(x: Tensor, axis: int) -> Tensor:
    before = x.shape[: axis + x.dim() if axis < 0 else axis]
    return x.reshape(math.prod(before), -1)


def _transpose(x: Tensor, perm: Sequence[int] | None = None) -> Tensor:
    return x.permute(*(perm or reversed(range(x.dim()))))


def _squeeze(x: Tensor, axes: Sequence[int] | None = None) -> Tensor:
    return x.squeeze() if axes is None else x.squeeze(tuple(axes))


def _unsqueeze(x: Tensor, axes: Sequence[int]) -> Tensor:
    rank = x.dim() + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        x = x.unsqueeze(axis)
    return x


def _split(
    x: Tensor, axis: int, split: Sequence[int] = (), *, call: Call
) -> Sequence[Tensor]:
    parts = split or [x.shape[axis] // call.outputs] * call.outputs
    return torch.split(x, list(parts), axis)


def _slice(
    x: Tensor,
    starts: _Integers,
    ends: _Integers,
    axes: _Integers | None = None,
    steps: _Integers | None = None,
) -> Tensor:
    count = len(integers(starts))
    for start, end, axis, step in zip(
        integers(starts),
        integers(ends),
        integers(axes) or range(count),
        integers(steps) or [1] * count,
        strict=True,
    ):
        # Before the first element, a reversed slice ends nowhere.
        last = None if step < 0 and end < -(1 << 31) else end
        chosen = range(x.shape[axis])[start:last:step]
        if step == 1:
            x = x.narrow(axis, chosen.start, len(chosen))
        else:
            x = x.index_select(axis, torch.tensor(list(chosen)))
    return x


def _expand(x: Tensor, shape: Tensor) -> Tensor:
    # The one that is shorter or has sizes of one may be either of them.
    return x.expand(np.broadcast_shapes(tuple(x.shape), tuple(integers(shape))))


def _pad(
    x: Tensor, pads: _Integers, value: Tensor | float | None = 0.0, *, mode: str
) -> Tensor:
    widths = integers(pads)
    if len(widths) != 2 * x.dim():
        raise popart_exception(
            f"Padding vector (length {len(widths)}) doesn't have exactly 2 entries for "
            f"each dimension of the input (of {x.dim()} dimensions)."
        )
    sides = torch_pads(widths)
    if mode == "constant":
        return F.pad(x, sides, value=number(value or 0.0))
    # The others take no more than three dimensions, and leave two alone.
    while sides and sides[-2:] == [0, 0]:
        sides = sides[:-2]
    missing = max(len(sides) // 2 + 2 - x.dim(), 0)
    padded = F.pad(x[(None,) * missing], sides, _PAD_MODES[mode])
    return padded[(0,) * missing]


def _constant_of_shape(shape: Tensor, value: Tensor | None = None) -> Tensor:
    element = torch.zeros(1) if value is None else value
    return element.reshape([]).expand(integers(shape)).clone()


def _range(start: Tensor, limit: Tensor, delta: Tensor) -> Tensor:
    return torch.arange(start.item(), limit.item(), delta.item(), dtype=start.dtype)


def _one_hot(places: Tensor, depth: Tensor, values: Tensor, axis: int) -> Tensor:
    size = int(depth)
    indices = places.to(torch.int64) % size
    shape = [1] * (indices.dim() + 1)
    shape[axis] = size
    numbers = torch.arange(size).reshape(shape)
    return torch.where(indices.unsqueeze(axis) == numbers, values[1], values[0])


def _gather(x: Tensor, places: Tensor, axis: int) -> Tensor:
    axis %= x.dim()
    indices = _indices(places, x.shape[axis])
    # index_select takes one dimension of indices, and adds up its gradients in order.
    picked = x.index_select(axis, indices.reshape(-1))
    return picked.reshape([*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]])


def _gather_elements(x: Tensor, places: Tensor, axis: int) -> Tensor:
    return x.gather(axis, _indices(places, x.shape[axis]))


def _scatter(x: Tensor, places: Tensor, values: Tensor, axis: int) -> Tensor:
    return x.scatter(axis, _indices(places, x.shape[axis]), values)


def _indices(indices: Tensor, size: int) -> Tensor:
    """Return indices of torch's, without negative ones."""
    if indices.is_floating_point():
        raise TypeError("indices must be integers.")
    indices = indices.to(torch.int64)
    return torch.where(indices < 0, indices + size, indices)


def _depth_to_space(x: Tensor, blocksize: int, mode: str = "DCR") -> Tensor:
    if mode == "CRD":
        return F.pixel_shuffle(x, blocksize)
    batch, channels, height, width = x.shape
    depth = channels // (blocksize * blocksize)
    x = x.reshape(batch, blocksize, blocksize, depth, height, width)
    x = x.permute(0, 3, 4, 1, 5, 2)
    return x.reshape(batch, depth, height * blocksize, width * blocksize)


def _space_to_depth(x: Tensor, blocksize: int) -> Tensor:
    batch, channels, height, width = x.shape
    rows, columns = height // blocksize, width // blocksize
    x = x.reshape(batch, channels, rows, blocksize, columns, blocksize)
    return x.permute(0, 3, 5, 1, 2, 4).reshape(batch, -1, rows, columns)


def _init(
    shape: Sequence[int], data_type: int, init_type: int = InitType.NoInit
) -> Tensor:
    if init_type != InitType.Zero:
        raise popart_exception(
            "init with InitType.NoInit has no defined values. Use InitType.Zero."
        )
    return torch.zeros(shape, dtype=BY_NAME[DataType(data_type).name].torch)


def _window(
    x: Tensor, offsets: Tensor, axes: Sequence[int], sizes: Sequence[int]
) -> Tensor:
    """Return a mask of the elements that a dynamic operator touches."""
    mask = torch.ones([], dtype=torch.bool)
    starts = integers(offsets)
    for start, axis, size in zip(starts, axes, sizes, strict=True):
        shape = [1] * x.dim()
        shape[axis] = x.shape[axis]
        index = torch.arange(x.shape[axis]).reshape(shape)
        mask = mask & (index >= start) & (index < start + size)
    return mask.expand(x.shape)


def _dynamic_slice(
    x: Tensor, offsets: Tensor, axes: Sequence[int], sizes: Sequence[int]
) -> Tensor:
    starts = integers(offsets)
    for start, axis, size in zip(starts, axes, sizes, strict=True):
        # Past the last element it goes on at the first one.
        index = start + torch.arange(size)
        x = x.index_select(axis, index % x.shape[axis])
    return x


def _scatter_reduce(
    source: Tensor, places: Tensor, axis_size: int, axis: int = -1
) -> Tensor:
    shape = list(source.shape)
    shape[axis] = axis_size
    index = places.to(torch.int64).expand(source.shape)
    return torch.zeros(shape, dtype=source.dtype).scatter_add(axis, index, source)


ONNX = {
    "Concat": Operator.of(lambda *tensors, axis: torch.cat(tensors, axis)),
    "Constant": Operator.of(lambda value: value),
    "ConstantOfShape": Operator.of(_constant_of_shape, (0,)),
    "DepthToSpace": Operator.of(_depth_to_space),
    "Expand": Operator.of(_expand, (1,)),
    "Flatten": Operator.of(_flatten),
    "Gather": Operator.of(_gather),
    "GatherElements": Operator.of(_gather_elements),
    "OneHot": Operator.of(_one_hot, (1,)),
    "Pad": Operator.of(_pad, (1, 2)),
    "Range": Operator.of(_range, (0, 1, 2)),
    "Reshape": Operator.of(_reshape, (1,)),
    "Scatter": Operator.of(_scatter),
    "ScatterElements": Operator.of(_scatter),
    "Shape": Operator.of(lambda x: torch.tensor(x.shape, dtype=torch.int64)),
    "Size": Operator.of(lambda x: torch.tensor(x.numel(), dtype=torch.int64)),
    "Slice": Operator.of(_slice, (1, 2, 3, 4)),
    "SpaceToDepth": Operator.of(_space_to_depth),
    "Split": Operator.of(_split),
    "Squeeze": Operator.of(_squeeze),
    "Tile": Operator.of(lambda x, repeats: x.repeat(integers(repeats)), (1,)),
    "Transpose": Operator.of(_transpose),
    "Unsqueeze": Operator.of(_unsqueeze),
}
GRAPHCORE = {
    "DepthToSpace": Operator.of(_depth_to_space),
    "DynamicAdd": Operator.of(
        lambda x, offsets, values, axes, sizes: (
            x
            + torch.zeros_like(x).masked_scatter(
                _window(x, offsets, axes, sizes), values
            )
        )
    ),
    "DynamicSlice": Operator.of(_dynamic_slice),
    "DynamicUpdate": Operator.of(
        lambda x, offsets, values, axes, sizes: x.masked_scatter(
            _window(x, offsets, axes, sizes), values
        )
    ),
    "DynamicZero": Operator.of(
        lambda x, offsets, axes, sizes: x.masked_fill(
            _window(x, offsets, axes, sizes), 0
        )
    ),
    "Init": Operator.of(_init),
    "Reshape": Operator.of(_reshape),
    "Reverse": Operator.of(lambda x, dimensions: x.flip(dimensions)),
    "ScatterReduce": Operator.of(_scatter_reduce),
    "Subsample": Operator.of(
        lambda x, strides: x[tuple(slice(None, None, step) for step in strides)]
    ),
}
