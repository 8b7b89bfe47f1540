"""Custom operators computed by torch, for poptorch and popart.

PROVIDED has the operators of Graphcore's public examples and libraries.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional

from popdist.sdk.custom_ops import CustomOp, CustomOpError, find_custom_op

Tensors = Sequence[torch.Tensor]
# Any: numbers, texts, and lists of either.
Attributes = Mapping[str, Any]
Inputs = Sequence[torch.Tensor | None]

# A causal mask adds this to the scores of later keys.
_MASKED = -10000.0


def compute_custom_op(
    name: str, inputs: Inputs, attributes: Attributes
) -> list[torch.Tensor]:
    """Return the outputs of a custom operator, through which gradients flow.

    Args:
        name: The operator.
        inputs: Its inputs; None in the place of an optional one that is left out.
        attributes: Its attributes.

    Raises:
        CustomOpError: It has no function, or the function returns no tensors.
    """
    operator = find_custom_op(name, PROVIDED)
    if operator.backward is None:
        outputs = operator.outputs(inputs, attributes)
    else:
        # torch has no types for this.
        apply: Any = _Differentiated.apply
        outputs = list(apply(operator, attributes, *inputs))
    for output in outputs:
        if not isinstance(output, torch.Tensor):
            raise CustomOpError(
                f"The function of the custom operator {name} returned a "
                f"{type(output).__name__}. Return a torch.Tensor, or a list of them."
            )
    return outputs


class _Differentiated(torch.autograd.Function):
    """A custom operator with its own backward function."""

    # Any: torch passes its context, and whatever tensors there are.
    @staticmethod
    def forward(
        ctx: Any, operator: CustomOp, attributes: Attributes, *inputs: Any
    ) -> Any:
        ctx.operator, ctx.attributes, ctx.count = operator, attributes, len(inputs)
        # torch takes an input that is returned as it is for one changed in place.
        outputs = [
            output.clone() if any(output is x for x in inputs) else output
            for output in operator.outputs(inputs, attributes)
        ]
        ctx.save_for_backward(*inputs, *outputs)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        saved = ctx.saved_tensors
        inputs, outputs = saved[: ctx.count], saved[ctx.count :]
        found = ctx.operator.gradients(gradients, inputs, outputs, ctx.attributes)
        return None, None, *found


def _remap(inputs: Tensors, attributes: Attributes) -> torch.Tensor:
    """Copy a tensor: only its layout in an IPU's memory changes."""
    return inputs[0].clone()


def _gather_last_dim(inputs: Tensors, attributes: Attributes) -> torch.Tensor:
    """Pick elements of the last dimension, by an index for each of them."""
    data, index = inputs
    if data.dim() != index.dim() or data.shape[:-1] != index.shape[:-1]:
        raise CustomOpError(
            f"FastGatherLastDim got data of shape {list(data.shape)} and an index of "
            f"shape {list(index.shape)}. They may differ in the last dimension only."
        )
    return data.gather(-1, index.long())


def _distances(inputs: Tensors, p: float) -> torch.Tensor:
    """Return the distance of each row of one matrix to each row of another."""
    first, second = (x.float() if x.dtype is torch.float16 else x for x in inputs)
    # A product of matrices would be less exact for rows close to each other.
    mode = "donot_use_mm_for_euclid_dist"
    return torch.cdist(first, second, p, mode).to(inputs[0].dtype)


def _l1_distance(inputs: Tensors, attributes: Attributes) -> torch.Tensor:
    return _distances(inputs, 1.0)


def _l2_distance(inputs: Tensors, attributes: Attributes) -> torch.Tensor:
    return _distances(inputs, 2.0)


def _causal_attention(inputs: Tensors, attributes: Attributes) -> torch.Tensor:
    """Attend to earlier positions: queries, keys and values come in one tensor.

    The scores are not scaled. Numbers of chunks only matter for an IPU's memory.
    """
    queries, keys, values = inputs[0].unbind()
    length = queries.shape[-2]
    for name in ("num_chunks_q", "num_chunks_kv"):
        if length % int(attributes[name]):
            raise CustomOpError(
                f"{name} is {attributes[name]}, but must divide the {length} positions "
                "of the sequence."
            )
    mask = torch.full((length, length), _MASKED, dtype=queries.dtype).triu(1)
    return functional.softmax(queries @ keys.mT + mask, dim=-1) @ values


def _sparse_matmul(inputs: Tensors, attributes: Attributes) -> torch.Tensor:
    """Multiply by a constant matrix: the attributes list its blocks."""
    (dense,) = inputs
    size = int(attributes["block_size"])
    rows, columns = int(attributes["n_rows"]), int(attributes["n_cols"])
    blocks = torch.tensor(attributes["values"], dtype=dense.dtype)
    tiles = torch.zeros(rows // size, columns // size, size, size, dtype=dense.dtype)
    # The attributes have the first row and column of each block.
    row_of, column_of = (torch.tensor(attributes[name]) for name in ("rows", "cols"))
    tiles[row_of // size, column_of // size] = blocks.view(-1, size, size)
    sparse = tiles.transpose(1, 2).reshape(rows, columns)
    pairs = {"sparse_dense": (sparse, dense), "dense_sparse": (dense, sparse)}
    mode = attributes["mode"]
    if mode not in pairs:
        raise CustomOpError(
            f"The mode of StaticSparseMatmul is {mode!r}, but must be one of "
            f"{', '.join(pairs)}."
        )
    left, right = pairs[mode]
    return left @ right


def _leaky_relu(inputs: Tensors, attributes: Attributes) -> torch.Tensor:
    return functional.leaky_relu(inputs[0], attributes["alpha"])


def _forward_value(inputs: Tensors, attributes: Attributes) -> torch.Tensor:
    """Return the first tensor; the second one gets the gradient."""
    return inputs[0]


def _gradient_of_proxy(
    gradients: Tensors, inputs: Tensors, outputs: Tensors, attributes: Attributes
) -> list[torch.Tensor | None]:
    return [None, gradients[0]]


PROVIDED = {
    operator.name: operator
    for operator in (
        CustomOp("RemapCE", _remap),
        CustomOp("CopyTensor", _remap),
        CustomOp("FastGatherLastDim", _gather_last_dim),
        CustomOp("L1Distance", _l1_distance),
        CustomOp("L2Distance", _l2_distance),
        CustomOp("SerialisedAttention", _causal_attention),
        # The later name of the same operator.
        CustomOp("FlashAttentionQKVPacked", _causal_attention),
        CustomOp("StaticSparseMatmul", _sparse_matmul),
        CustomOp("AutogradProxy", _forward_value, _gradient_of_proxy),
        CustomOp("LeakyRelu", _leaky_relu),
    )
}
