"""The operators of public examples, against their definitions written in numpy."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

from popdist.sdk import register_custom_op
from popdist.sdk.custom_ops import CustomOpError
from popdist.sdk.torch_custom_ops import compute_custom_op


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def compute(name: str, *inputs: torch.Tensor, **attributes: Any) -> torch.Tensor:
    (output,) = compute_custom_op(name, inputs, attributes)
    return output


def check_gradients(
    name: str, inputs: list[torch.Tensor], attributes: Mapping[str, Any]
) -> None:
    assert gradcheck(lambda *given: compute(name, *given, **attributes), inputs)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(7)


def test_remap_copies() -> None:
    x = draw(3, 5)

    found = compute("RemapCE", x, grain_size=8)

    assert found.equal(x)
    assert found.data_ptr() != x.data_ptr()
    check_gradients("RemapCE", [x], {"fwd_grain_size": 16, "debug_str": ""})


def test_gather_picks_along_the_last_dimension() -> None:
    data = draw(3, 4, 6)
    index = torch.randint(0, 6, (3, 4, 5), dtype=torch.int32)

    found = compute("FastGatherLastDim", data, index, axis=-1).detach().numpy()

    expected = np.take_along_axis(data.detach().numpy(), index.long().numpy(), -1)
    assert np.array_equal(found, expected)
    check_gradients("FastGatherLastDim", [data, index], {})
    for shape in ((3, 1, 6), (4, 6)):
        with pytest.raises(CustomOpError, match="differ in the last dimension only"):
            compute("FastGatherLastDim", data, torch.zeros(shape, dtype=torch.int32))


@pytest.mark.parametrize("p", [1, 2])
def test_distances_of_all_pairs_of_rows(p: int) -> None:
    first, second = draw(5, 3), draw(7, 3)

    found = compute(f"L{p}Distance", first, second, root_path="/").detach().numpy()

    a, b = first.detach().numpy(), second.detach().numpy()
    powers = np.abs(a[:, None] - b[None]) ** p
    np.testing.assert_allclose(found, powers.sum(-1) ** (1 / p), rtol=1e-12)
    check_gradients(f"L{p}Distance", [first, second], {})
    halves = (first.detach().half(), second.detach().half())
    assert compute(f"L{p}Distance", *halves).dtype is torch.float16


def test_equal_rows_have_no_gradient_of_their_distance() -> None:
    row = torch.ones(1, 3, requires_grad=True)

    compute("L1Distance", row, torch.ones(1, 3)).sum().backward()

    assert row.grad is not None
    assert row.grad.tolist() == [[0, 0, 0]]


@pytest.mark.parametrize("name", ["SerialisedAttention", "FlashAttentionQKVPacked"])
def test_attention_sees_no_later_position_and_scales_nothing(name: str) -> None:
    qkv = draw(3, 2, 6, 4)
    chunks = {"num_chunks_q": 2, "num_chunks_kv": 3}

    found = compute(name, qkv, **chunks).detach().numpy()

    for head in range(2):
        q, k, v = qkv.detach().numpy()[:, head]
        for position in range(6):
            scores = np.exp(k[: position + 1] @ q[position])
            expected = scores / scores.sum() @ v[: position + 1]
            np.testing.assert_allclose(found[head, position], expected, rtol=1e-9)
    check_gradients(name, [qkv], chunks)
    with pytest.raises(CustomOpError, match="num_chunks_kv is 4, but must"):
        compute(name, qkv, num_chunks_q=1, num_chunks_kv=4)


@pytest.mark.parametrize("mode", ["sparse_dense", "dense_sparse"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_blocks_of_a_constant_matrix_are_multiplied(mode: str, size: int) -> None:
    # Blocks in no order, and rows of blocks without any.
    places = [(2, 1), (0, 3), (0, 0)]
    blocks = np.random.default_rng(3).standard_normal((len(places), size, size))
    matrix = np.zeros((4 * size, 5 * size))
    for (row, column), block in zip(places, blocks, strict=True):
        matrix[row * size :, column * size :][:size, :size] = block
    dense = draw(5 * size, 7) if mode == "sparse_dense" else draw(7, 4 * size)
    attributes = {
        "mode": mode,
        "n_rows": 4 * size,
        "n_cols": 5 * size,
        "block_size": size,
        "rows": [size * row for row, _ in places],
        "cols": [size * column for _, column in places],
        "values": blocks.ravel().tolist(),
    }

    found = compute("StaticSparseMatmul", dense, **attributes).detach().numpy()

    pair = (matrix, dense.detach().numpy())
    expected = np.matmul(*(pair if mode == "sparse_dense" else pair[::-1]))
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    check_gradients("StaticSparseMatmul", [dense], attributes)
    with pytest.raises(CustomOpError, match="mode of StaticSparseMatmul is 'dense'"):
        compute("StaticSparseMatmul", dense, **{**attributes, "mode": "dense"})


def test_the_proxy_has_the_gradient() -> None:
    x = torch.tensor([5.7], requires_grad=True)

    found = compute("AutogradProxy", x.round(), 3 * x)
    (100 * found).sum().backward()

    assert found.tolist() == [6]
    assert x.grad is not None
    assert x.grad.tolist() == [300]


def test_leaky_relu_scales_what_is_negative() -> None:
    found = compute("LeakyRelu", torch.tensor([-1.0, -0.5, 0.0, 2.0]), alpha=0.5)

    assert found.tolist() == [-0.5, -0.25, 0.0, 2.0]


def test_a_backward_function_takes_the_place_of_autograd() -> None:
    def backward(gradients: Any, inputs: Any, outputs: Any, attributes: Any) -> Any:
        assert outputs[1].equal(inputs[0] + inputs[1])
        return [attributes["factor"] * gradients[0], None]

    register_custom_op(
        "test.TwoOutputs", lambda inputs, _: [inputs[0], sum(inputs)], backward
    )
    x, y = (torch.ones(2, requires_grad=True) for _ in range(2))

    first, second = compute_custom_op("test.TwoOutputs", [x, y], {"factor": 5})
    (first + second).sum().backward()

    assert x.grad is not None
    assert x.grad.tolist() == [5, 5]
    assert y.grad is None


def test_a_function_must_return_tensors() -> None:
    register_custom_op("test.Number", lambda inputs, attributes: 5)

    with pytest.raises(CustomOpError, match=r"test\.Number returned a int\. Return a"):
        compute_custom_op("test.Number", [], {})
