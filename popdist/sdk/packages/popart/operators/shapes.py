"""Operators that change shapes, or select, place and create elements."""

import numpy as np
import torch
import torch.nn.functional as F

from ..enums import DataType, InitType
from ..errors import popart_exception
from ..tensor_info import BY_NAME
from .call import Call, Operator, axis_of, torch_pads

_PAD_MODES = {"constant": "constant", "reflect": "reflect", "edge": "replicate"}


def _reshape(call: Call) -> torch.Tensor:
    x = call[0]
    shape = call.numbers(1, "shape") or []
    # A zero copies the size of the same dimension.
    return x.reshape([x.shape[i] if n == 0 else n for i, n in enumerate(shape)])


def _flatten(call: Call) -> torch.Tensor:
    axis = axis_of(call, default=1)
    rows = 1
    for size in call[0].shape[:axis]:
        rows *= size
    return call[0].reshape(rows, -1)


def _transpose(call: Call) -> torch.Tensor:
    order = call.get("perm") or list(reversed(range(call[0].dim())))
    return call[0].permute(*order)


def _squeeze(call: Call) -> torch.Tensor:
    axes = call.get("axes")
    return call[0].squeeze() if axes is None else call[0].squeeze(tuple(axes))


def _unsqueeze(call: Call) -> torch.Tensor:
    x, axes = call[0], call.get("axes")
    rank = x.dim() + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        x = x.unsqueeze(axis)
    return x


def _concat(call: Call) -> torch.Tensor:
    return torch.cat([call[i] for i in range(len(call.inputs))], call.get("axis"))


def _split(call: Call) -> tuple[torch.Tensor, ...]:
    axis = axis_of(call)
    parts = call.get("split") or [call[0].shape[axis] // call.outputs] * call.outputs
    return torch.split(call[0], list(parts), axis)


def _slice(call: Call) -> torch.Tensor:
    x = call[0]
    starts, ends = call.numbers(1, "starts") or [], call.numbers(2, "ends") or []
    axes = call.numbers(3, "axes") or list(range(len(starts)))
    steps = call.numbers(4, "steps") or [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        chosen = range(x.shape[axis])[slice(*_bounds(start, end, step))]
        if step == 1:
            x = x.narrow(axis, chosen.start, len(chosen))
        else:
            x = x.index_select(axis, torch.tensor(list(chosen)))
    return x


def _bounds(start: int, end: int, step: int) -> tuple[int, int | None, int]:
    # Before the first element, a reversed slice ends nowhere.
    unbounded = step < 0 and end < -(1 << 31)
    return start, None if unbounded else end, step


def _expand(call: Call) -> torch.Tensor:
    shape = call.numbers(1, "shape") or []
    # The one that is shorter or has sizes of one may be either of them.
    return call[0].expand(np.broadcast_shapes(tuple(call[0].shape), tuple(shape)))


def _tile(call: Call) -> torch.Tensor:
    return call[0].repeat(call.numbers(1, "repeats") or [])


def _pad(call: Call) -> torch.Tensor:
    x, pads = call[0], call.numbers(1, "pads") or []
    if len(pads) != 2 * x.dim():
        raise popart_exception(
            f"Padding vector (length {len(pads)}) doesn't have exactly 2 entries for "
            f"each dimension of the input (of {x.dim()} dimensions)."
        )
    value = call[2].item() if call.has(2) else call.get("value", 0.0)
    sides = torch_pads(pads)
    mode = _PAD_MODES[call.get("mode")]
    if mode == "constant":
        return F.pad(x, sides, mode, value)
    # The others take no more than three dimensions, and leave two alone.
    while sides and sides[-2:] == [0, 0]:
        sides = sides[:-2]
    missing = len(sides) // 2 + 2 - x.dim()
    x = x[(None,) * missing] if missing > 0 else x
    padded = F.pad(x, sides, mode)
    return padded[(0,) * missing] if missing > 0 else padded


def _shape(call: Call) -> torch.Tensor:
    return torch.tensor(call[0].shape, dtype=torch.int64)


def _size(call: Call) -> torch.Tensor:
    return torch.tensor(call[0].numel(), dtype=torch.int64)


def _constant(call: Call) -> torch.Tensor:
    value: torch.Tensor = call.get("value")
    return value


def _constant_of_shape(call: Call) -> torch.Tensor:
    value: torch.Tensor = call.get("value", torch.zeros(1))
    return value.reshape([]).expand(call.numbers(0, "shape") or []).clone()


def _range(call: Call) -> torch.Tensor:
    start, limit, delta = (call[i].item() for i in range(3))
    return torch.arange(start, limit, delta, dtype=call[0].dtype)


def _one_hot(call: Call) -> torch.Tensor:
    depth, values = int(call[1].reshape(-1)[0].item()), call[2]
    axis = call.get("axis")
    indices = call[0].to(torch.int64) % depth
    shape = [1] * (indices.dim() + 1)
    shape[axis] = depth
    places = torch.arange(depth).reshape(shape)
    return torch.where(indices.unsqueeze(axis) == places, values[1], values[0])


def _gather(call: Call) -> torch.Tensor:
    x, axis = call[0], axis_of(call)
    indices = _indices(call[1], x.shape[axis])
    # index_select takes one dimension of indices, and adds up its gradients in order.
    picked = x.index_select(axis, indices.reshape(-1))
    return picked.reshape([*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]])


def _gather_elements(call: Call) -> torch.Tensor:
    axis = axis_of(call)
    return call[0].gather(axis, _indices(call[1], call[0].shape[axis]))


def _scatter(call: Call) -> torch.Tensor:
    axis = axis_of(call)
    return call[0].scatter(axis, _indices(call[1], call[0].shape[axis]), call[2])


def _indices(indices: torch.Tensor, size: int) -> torch.Tensor:
    """Return indices of torch's, without negative ones."""
    if indices.is_floating_point():
        raise TypeError("indices must be integers.")
    indices = indices.to(torch.int64)
    return torch.where(indices < 0, indices + size, indices)


def _depth_to_space(call: Call) -> torch.Tensor:
    x, block = call[0], call.get("blocksize")
    batch, channels, height, width = x.shape
    depth = channels // (block * block)
    if call.get("mode", "DCR") == "DCR":
        x = x.reshape(batch, block, block, depth, height, width)
        x = x.permute(0, 3, 4, 1, 5, 2)
    else:
        x = x.reshape(batch, depth, block, block, height, width)
        x = x.permute(0, 1, 4, 2, 5, 3)
    return x.reshape(batch, depth, height * block, width * block)


def _space_to_depth(call: Call) -> torch.Tensor:
    x, block = call[0], call.get("blocksize")
    batch, channels, height, width = x.shape
    x = x.reshape(batch, channels, height // block, block, width // block, block)
    x = x.permute(0, 3, 5, 1, 2, 4)
    return x.reshape(batch, -1, height // block, width // block)


def _subsample(call: Call) -> torch.Tensor:
    return call[0][tuple(slice(None, None, step) for step in call.get("strides"))]


def _reverse(call: Call) -> torch.Tensor:
    return call[0].flip(call.get("dimensions"))


def _init(call: Call) -> torch.Tensor:
    kind = BY_NAME[DataType(call.get("data_type")).name]
    if call.get("init_type") != InitType.Zero:
        raise popart_exception(
            "init with InitType.NoInit has no defined values. Use InitType.Zero."
        )
    return torch.zeros(call.get("shape"), dtype=kind.torch)


def _window(call: Call, at: int) -> torch.Tensor:
    """Return a mask of the elements that a dynamic operator touches.

    Args:
        at: The index of the input that holds the window's offsets.
    """
    x, mask = call[0], torch.ones([], dtype=torch.bool)
    offsets = call[at].reshape(-1).to(torch.int64)
    for place, (axis, size) in enumerate(
        zip(call.get("axes"), call.get("sizes"), strict=True)
    ):
        shape = [1] * x.dim()
        shape[axis] = x.shape[axis]
        index = torch.arange(x.shape[axis]).reshape(shape)
        mask = mask & (index >= offsets[place]) & (index < offsets[place] + size)
    return mask.expand(x.shape)


def _dynamic_slice(call: Call) -> torch.Tensor:
    x = call[0]
    offsets = call[1].reshape(-1).to(torch.int64)
    for place, (axis, size) in enumerate(
        zip(call.get("axes"), call.get("sizes"), strict=True)
    ):
        # Past the last element it goes on at the first one.
        index = offsets[place] + torch.arange(size)
        x = x.index_select(axis, index % x.shape[axis])
    return x


def _dynamic_zero(call: Call) -> torch.Tensor:
    return torch.where(_window(call, 1), torch.zeros_like(call[0]), call[0])


def _dynamic_update(call: Call) -> torch.Tensor:
    mask = _window(call, 1)
    return call[0].masked_scatter(mask, call[2])


def _dynamic_add(call: Call) -> torch.Tensor:
    mask = _window(call, 1)
    return call[0] + torch.zeros_like(call[0]).masked_scatter(mask, call[2])


def _scatter_reduce(call: Call) -> torch.Tensor:
    source, axis = call[0], axis_of(call, default=-1)
    shape = list(source.shape)
    shape[axis] = call.get("axis_size")
    index = call[1].to(torch.int64).expand(source.shape)
    return torch.zeros(shape, dtype=source.dtype).scatter_add(axis, index, source)


ONNX = {
    "Concat": Operator(_concat),
    "Constant": Operator(_constant),
    "ConstantOfShape": Operator(_constant_of_shape, (0,)),
    "DepthToSpace": Operator(_depth_to_space),
    "Expand": Operator(_expand, (1,)),
    "Flatten": Operator(_flatten),
    "Gather": Operator(_gather),
    "GatherElements": Operator(_gather_elements),
    "OneHot": Operator(_one_hot, (1,)),
    "Pad": Operator(_pad, (1, 2)),
    "Range": Operator(_range, (0, 1, 2)),
    "Reshape": Operator(_reshape, (1,)),
    "Scatter": Operator(_scatter),
    "ScatterElements": Operator(_scatter),
    "Shape": Operator(_shape),
    "Size": Operator(_size),
    "Slice": Operator(_slice, (1, 2, 3, 4)),
    "SpaceToDepth": Operator(_space_to_depth),
    "Split": Operator(_split),
    "Squeeze": Operator(_squeeze),
    "Tile": Operator(_tile, (1,)),
    "Transpose": Operator(_transpose),
    "Unsqueeze": Operator(_unsqueeze),
}
GRAPHCORE = {
    "DepthToSpace": Operator(_depth_to_space),
    "DynamicAdd": Operator(_dynamic_add),
    "DynamicSlice": Operator(_dynamic_slice),
    "DynamicUpdate": Operator(_dynamic_update),
    "DynamicZero": Operator(_dynamic_zero),
    "Init": Operator(_init),
    "Reshape": Operator(_reshape),
    "Reverse": Operator(_reverse),
    "ScatterReduce": Operator(_scatter_reduce),
    "Subsample": Operator(_subsample),
}
