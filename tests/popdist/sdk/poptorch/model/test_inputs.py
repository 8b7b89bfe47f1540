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

    with pytest.raises(
        poptorch.Error, match=r"inputs passed at runtime don't"
    ) as raised:
        executor(X, Y, offset=torch.ones(3))
    assert str(raised.value).startswith(
        "Shape mismatch for offset: expected torch.Size([1]) but got torch.Size([3]). "
    )


def test_inputs_by_name_have_no_order() -> None:
    executor = poptorch.inferenceModel(Named(), options())

    for _ in range(2):
        assert executor({"a": X, "b": [Y]}, c=Z, d=X).tolist() == [29.0]
        assert executor({"b": [Y], "a": X}, d=X, c=Z).tolist() == [29.0]
    for others, text in (
        ({"b": [Y], "a": X, "c": X}, "Unexpected arguments: c in inputs."),
        ({"b": [Y]}, "Missing arguments: a in inputs."),
        ({"b": [Y, Y], "a": X}, "Unexpected arguments: b in inputs[1]."),
    ):
        with pytest.raises(poptorch.Error) as raised:
            executor(others, d=X, c=Z)
        assert str(raised.value).startswith(text)
    with pytest.raises(poptorch.Error, match=r"^Missing arguments: d[.]"):
        executor({"b": [Y], "a": X}, c=Z)


def test_arguments_that_forward_does_not_take_are_named_by_it() -> None:
    executor = poptorch.inferenceModel(Sum(), options())

    with pytest.raises(TypeError, match="unexpected keyword argument 'z'"):
        executor(X, Y, z=Z)
    with pytest.raises(
        poptorch.Error, match=r"^Mandatory parameter y missing"
    ) as raised:
        executor(X)
    assert isinstance(raised.value, TypeError)


class Times(nn.Module):
    def forward(
        self, *factors: torch.Tensor, times: float = 1, plus: torch.Tensor | None = None
    ) -> torch.Tensor:
        found = torch.stack(factors).prod(0) * times
        return found if plus is None else found + plus


def test_inputs_that_are_no_tensors_are_constants_of_the_model() -> None:
    executor = poptorch.inferenceModel(Times(), options())

    assert executor(X, Y, times=5, plus=X).tolist() == [11.0]
    assert executor(X, Z, times=5, plus=X).tolist() == [21.0]
    named: dict[str, Any]
    for named, text in (
        ({"times": 3, "plus": X}, "Value mismatch for times: expected 5 but got 3."),
        ({"plus": X}, "Value mismatch for times: expected 5 but got 1."),
        ({"times": 5.0, "plus": X}, "Type mismatch for times: expected int but got "),
        (
            {"times": 5},
            "Type mismatch for plus: expected torch.Tensor, torch.float32 but got Non",
        ),
        (
            {"times": 5, "plus": X.int()},
            "Type mismatch for plus: expected torch.float32 but got torch.int32.",
        ),
    ):
        with pytest.raises(poptorch.Error) as raised:
            executor(X, Y, **named)
        assert str(raised.value).startswith(text)
    with pytest.raises(
        poptorch.Error, match=r"arguments mismatch: expected 2 .* got 1"
    ):
        executor(X, times=5, plus=X)
    executor.destroy()
    assert executor(X, Y, Z).tolist() == [8.0]


class Adding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x += self.bias
        return poptorch.identity_loss(x, reduction="none")


def test_what_a_model_changes_in_an_input_changes_once() -> None:
    executor = poptorch.inferenceModel(Adding(), options(replicas=3))
    x = torch.tensor([1.0, 2.0, 3.0])

    assert executor(x).tolist() == [2, 3, 4]
    assert x.tolist() == [2, 3, 4]
    assert executor(x).tolist() == [3, 4, 5]


def test_replicas_that_share_an_input_find_it_unchanged() -> None:
    shared = options(replicas=2)
    shared.inputReplicaGrouping(2, poptorch.CommGroupType.Consecutive)
    x = torch.tensor([1.0])

    assert poptorch.inferenceModel(Adding(), shared)(x).tolist() == [2, 2]


def test_a_model_trains_on_inputs_that_it_changes() -> None:
    model = Adding()
    accumulating = options(accumulation=2)
    accumulating.outputMode(poptorch.OutputMode.All)
    executor = poptorch.trainingModel(
        model, accumulating, torch.optim.SGD(model.parameters(), lr=0.25)
    )
    x = torch.zeros(64)

    executor(x)
    executor(x)

    assert not x.requires_grad
    assert x.tolist() == [1.0 - 7] * 64
    assert model.bias.tolist() == [1 - 8 - 8]
