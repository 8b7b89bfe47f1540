from typing import Any

import pytest
import torch
from poptorch_models import options
from torch import nn

import poptorch

ZERO, ONE = torch.zeros(1), torch.ones(1)
X, Y, Z = torch.tensor([1.0]), torch.tensor([2.0]), torch.tensor([4.0])


class Sum(nn.Module):
    def forward(
        self,
        x: torch.Tensor,
        y: torch.Tensor,
        scale: torch.Tensor = ONE,
        offset: torch.Tensor = ZERO,
    ) -> torch.Tensor:
        return x * scale + y * offset


class Named(nn.Module):
    def forward(self, inputs: dict[str, Any], **others: torch.Tensor) -> torch.Tensor:
        a, b = inputs["a"], inputs["b"][0]
        return a - b + 10 * others["c"] - 10 * others["d"]


def test_a_default_tensor_may_be_given_later() -> None:
    executor = poptorch.inferenceModel(Sum(), options())

    assert executor(X, Y).tolist() == [1.0]
    assert executor(X, Y, offset=Z).tolist() == [9.0]
    assert executor(offset=Z, y=Y, x=X).tolist() == [9.0]
    assert executor(X, y=Y, scale=Z, offset=Z).tolist() == [12.0]
    assert executor(X, Y).tolist() == [1.0]


def test_a_default_tensor_of_another_shape_is_another_input() -> None:
    executor = poptorch.inferenceModel(Sum(), options())
    executor(X, Y)

    with pytest.raises(poptorch.Error, match="inputs passed at runtime don't match"):
        executor(X, Y, offset=torch.ones(3))


def test_inputs_by_name_have_no_order() -> None:
    executor = poptorch.inferenceModel(Named(), options())

    for _ in range(2):
        assert executor({"a": X, "b": [Y]}, c=Z, d=X).tolist() == [29.0]
        assert executor({"b": [Y], "a": X}, d=X, c=Z).tolist() == [29.0]
    with pytest.raises(poptorch.Error, match="inputs passed at runtime don't match"):
        executor({"b": [Y], "a": X, "c": X}, d=X, c=Z)


def test_arguments_that_forward_does_not_take_are_named_by_it() -> None:
    executor = poptorch.inferenceModel(Sum(), options())

    with pytest.raises(TypeError, match=r"forward\(\) missing 1 required"):
        executor(X)
