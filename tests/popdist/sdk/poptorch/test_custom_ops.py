from typing import Any

import pytest
import torch
from poptorch_models import options
from torch import nn

import poptorch
from popdist.sdk import register_custom_op


class Cubed(nn.Module):
    def __init__(self, custom: bool) -> None:
        super().__init__()
        self.custom = custom
        self.weight = nn.Parameter(torch.tensor([[0.5, -0.25], [1.0, 0.75]]))

    def forward(self, x: torch.Tensor) -> Any:
        x = x @ self.weight
        if self.custom:
            outputs = poptorch.custom_op(
                [x], "test.Cube", "com.acme", 1, [x], attributes={"bias": 2.0}
            )
            x = outputs[0]
        else:
            x = x**3 + 2
        return x, poptorch.identity_loss(x, "sum")


def test_models_train_through_a_registered_function() -> None:
    register_custom_op(
        "test.Cube", lambda inputs, attributes: inputs[0] ** 3 + attributes["bias"]
    )
    x = torch.tensor([[1.0, 2.0], [3.0, -1.0]])
    weights = []
    for custom in (True, False):
        model = Cubed(custom)
        executor = poptorch.trainingModel(
            model,
            options(replicas=2),
            torch.optim.SGD(model.parameters(), 0.1),
        )
        executor(x)
        weights.append(model.weight.detach())

    assert weights[0].equal(weights[1])
    assert not weights[0].equal(Cubed(True).weight)


def test_operators_without_a_function_say_how_to_register_one() -> None:
    x = torch.ones(1)

    with pytest.raises(
        poptorch.Error, match=r"popdist\.sdk\.register_custom_op\('test.None', function"
    ):
        poptorch.custom_op([x], "test.None", "domain", 1, [x])


def test_there_are_as_many_outputs_as_examples() -> None:
    register_custom_op("test.Sum", lambda inputs, _: inputs[0].sum())
    x = torch.ones(2, 3)

    assert poptorch.custom_op([x], "test.Sum", "com.acme", 1, [x])[0] == 6
    with pytest.raises(
        poptorch.Error, match="RemapCE returned 1 outputs, but example_outputs has 2"
    ):
        poptorch.custom_op([x], "RemapCE", "ai.graphcore", 1, [x, torch.ones(1)])


@pytest.mark.parametrize(
    ("attributes", "error", "words"),
    [
        ({1: 2}, ValueError, "keys must be strings"),
        ({"a": None}, ValueError, "a is a NoneType"),
        ({"a": [1, 2.0]}, ValueError, "must all be the same"),
        ({"a": ["b", "\u1f00"]}, ValueError, "\u1f00 contains non-ASCII characters"),
        ({"\u1f00": 1}, ValueError, "non-ASCII"),
        ({"a": -1e300}, poptorch.Error, r"-1e\+300 is too low for a Popart float"),
        ({"a": [1.0, 1e300]}, poptorch.Error, r"1e\+300 is too high"),
    ],
)
def test_attributes_are_checked(attributes: Any, error: Any, words: str) -> None:
    x = torch.ones(1)

    with pytest.raises(error, match=words):
        poptorch.custom_op([x], "RemapCE", "ai.graphcore", 1, [x], attributes)
