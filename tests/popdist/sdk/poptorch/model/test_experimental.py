import pytest
import torch
from poptorch_models import options
from torch import nn

import poptorch
from poptorch.experimental import IPUContext, IPUScope


def test_a_function_runs_as_a_model_does() -> None:
    @IPUContext
    def doubled(x: torch.Tensor, factor: int = 2) -> tuple[torch.Tensor, bool]:
        return x * factor, poptorch.isRunningOnIpu()

    assert doubled(torch.ones(2), factor=2)[0].tolist() == [2.0, 2.0]
    assert doubled(torch.ones(2), factor=2)[1] is True


def test_a_function_uses_the_weights_of_a_model() -> None:
    layer = nn.Linear(2, 2)
    x = torch.ones(4, 2)

    @IPUContext(model=layer, options=options(replicas=2))
    def applied(x: torch.Tensor) -> torch.Tensor:
        return layer(x)

    assert applied(x).equal(layer(x))
    assert not applied(x).requires_grad
    with torch.no_grad():
        layer.weight.zero_()
    assert applied(x).equal(layer.bias.expand(4, 2))


def test_what_cannot_be_emulated_is_refused() -> None:
    with pytest.raises(poptorch.Error, match=r"use poptorch\.trainingModel"):
        IPUContext(lambda x: x, training=True)
    with pytest.raises(poptorch.Error, match="Make the code a function"):
        IPUScope([torch.ones(1)])
