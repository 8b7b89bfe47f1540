from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from poptorch_models import batch, options, seeded
from torch import nn
from torch.nn import functional

import poptorch
from poptorch.model.forward import half_precision

LARGEST = 65504.0
HALF = torch.float16


class Function(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> Any:
        return self.function(*args)


def run(function: Callable[..., Any], *args: torch.Tensor) -> Any:
    return poptorch.inferenceModel(Function(function), options())(*args)


def masked(x: torch.Tensor) -> torch.Tensor:
    return x.masked_fill(x > 250, -1e9)


def convolved(x: torch.Tensor) -> torch.Tensor:
    return functional.conv1d(x.view(1, 2, 2), x.new_full((1, 2, 1), 300))


def in_a_list(x: torch.Tensor) -> torch.Tensor:
    torch._foreach_mul_([x], 300)
    return x


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        pytest.param(lambda x: x * -300, -LARGEST, id="product"),
        pytest.param(lambda x: x.clone().mul_(300), LARGEST, id="in place"),
        pytest.param(lambda x: in_a_list(x.clone()), LARGEST, id="in a list"),
        pytest.param(lambda x: x / 0, LARGEST, id="division by zero"),
        pytest.param(lambda x: (x.float() * 300).half(), LARGEST, id="conversion"),
        pytest.param(lambda x: x.clone().copy_(x.float() * 300), LARGEST, id="copy"),
        pytest.param(lambda x: x * 200 + x * 200, LARGEST, id="sum of two"),
        pytest.param(lambda x: (x * 100).sum(), LARGEST, id="sum"),
        pytest.param(lambda x: x.clone().fill_(float("inf")), LARGEST, id="infinity"),
        pytest.param(masked, -LARGEST, id="masked"),
        pytest.param(lambda x: x.view(2, 2) @ x.view(2, 2), LARGEST, id="matrices"),
        pytest.param(convolved, LARGEST, id="convolution"),
    ],
)
def test_what_float16_has_no_place_for_becomes_its_largest_number(
    function: Callable[[torch.Tensor], torch.Tensor], expected: float
) -> None:
    found = run(function, torch.full((4,), 300.0, dtype=HALF))

    assert found.dtype is HALF
    assert set(found.flatten().tolist()) == {expected}


def test_what_is_no_number_stays_none() -> None:
    found = run(lambda x: x * float("nan"), torch.ones(2, dtype=HALF))

    assert found.isnan().all()


def test_numbers_of_float32_are_not_clipped() -> None:
    found = run(lambda x: x.float() * 300, torch.full((2,), 300.0, dtype=HALF))

    assert found.tolist() == [90000.0, 90000.0]


def test_running_statistics_are_clipped() -> None:
    norm = nn.BatchNorm1d(2).half()
    model = nn.Sequential(norm, nn.Flatten())
    poptorch.inferenceModel(model, options())(
        torch.tensor([[3e4, 1], [-3e4, 3]]).half()
    )

    assert norm.running_var is not None
    assert norm.running_var.tolist() == [LARGEST, pytest.approx(1.1, rel=1e-3)]


POSITIONS = torch.tensor([0, 1] * 2000)


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x: functional.layer_norm(x, (40,)), id="layer norm"),
        pytest.param(lambda x: functional.group_norm(x, 4), id="group norm"),
        pytest.param(
            lambda x: functional.batch_norm(x, None, None, training=True),
            id="batch norm",
        ),
        pytest.param(lambda x: x.clamp(min=2047 / 2048).prod(0), id="product"),
        pytest.param(lambda x: x.cumsum(0), id="running sum"),
        pytest.param(
            lambda x: x.new_zeros(2, 40).index_put((POSITIONS,), x, accumulate=True),
            id="sums by index",
        ),
    ],
)
def test_float16_is_added_up_in_float32(
    function: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    x = torch.rand(4000, 40, generator=torch.Generator().manual_seed(1)).half()
    expected = run(function, x.float()).half()

    torch.testing.assert_close(run(function, x), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", ["batch", "group", "layer"])
def test_gradients_of_norms_are_added_up_in_float32(kind: str) -> None:
    norms = {
        "batch": nn.BatchNorm1d(40),
        "group": nn.GroupNorm(4, 40),
        "layer": nn.LayerNorm(40),
    }

    class Normalised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = norms[kind]

        def forward(self, x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
            return poptorch.identity_loss(self.norm(x) * weights, reduction="sum")

    x, weights = torch.rand(2, 3000, 40, generator=torch.Generator().manual_seed(1))
    x, weights = x.half(), weights.half()
    found = []
    for dtype in (HALF, torch.float32):
        model = Normalised().to(dtype)
        nn.init.ones_(model.norm.weight)
        nn.init.zeros_(model.norm.bias)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        executor = poptorch.trainingModel(model, options(), optimizer)
        executor(x.to(dtype), weights.to(dtype))
        found.append(torch.cat([p.detach().float() for p in model.parameters()]))
        executor.destroy()

    torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=0.02)


def test_gradients_that_overflow_train_on() -> None:
    model = seeded(nn.BatchNorm1d(8)).half()
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.05, loss_scaling=2.0**17)
    settings = options(2, 2)
    settings.Training.accumulationAndReplicationReductionType(
        poptorch.ReductionType.Sum
    )
    executor = poptorch.trainingModel(model, settings, optimizer)
    x, target = batch(64)

    losses = [executor(x.half() * 100, target)[1].float().mean() for _ in range(10)]

    assert torch.stack(losses).isfinite().all()
    assert losses[-1] < 0.8 * losses[0]
    assert all(weight.isfinite().all() for weight in model.state_dict().values())


@pytest.mark.parametrize("cached", [False, True])
def test_float16_that_only_forward_makes_is_clipped(
    cached: bool, tmp_path: Path
) -> None:
    class Converted(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.half() * 300

    settings = options()
    if cached:
        settings.enableExecutableCaching(str(tmp_path))
        poptorch.inferenceModel(Converted(), settings)(torch.ones(2))
    executor = poptorch.inferenceModel(Converted(), settings)

    assert executor(torch.tensor([1.0, 300.0])).tolist() == [300.0, LARGEST]


@pytest.mark.parametrize(
    ("function", "dtype", "said"),
    [
        (lambda x: x * 300, HALF, "aten::mul yields infinity"),
        (lambda x: x.view(1, 2) @ x.view(2, 1), HALF, "aten::to yields infinity"),
        (lambda x: x / 0, torch.float32, "aten::div yields infinity"),
        (lambda x: (x - 500).sqrt(), torch.float32, r"aten::sqrt yields no number"),
    ],
)
def test_floating_point_exceptions_name_the_operation(
    function: Callable[..., Any], dtype: torch.dtype, said: str
) -> None:
    settings = options()
    settings.Precision.enableFloatingPointExceptions(True)
    executor = poptorch.inferenceModel(Function(function), settings)

    with pytest.raises(poptorch.Error, match=f"A floating-point exception: {said}"):
        executor(torch.full((2,), 300.0, dtype=dtype))


def test_infinity_that_a_model_writes_is_no_exception() -> None:
    settings = options()
    settings.Precision.enableFloatingPointExceptions(True)
    model = Function(lambda x: x.masked_fill(x > 2, float("-inf")).softmax(0))

    found = poptorch.inferenceModel(model, settings)(torch.tensor([1.0, 1.0, 3.0]))

    assert found.tolist() == [0.5, 0.5, 0.0]


def test_a_model_trains_with_floating_point_exceptions() -> None:
    settings = options(2, 2)
    settings.Precision.enableFloatingPointExceptions(True)
    executor = poptorch.trainingModel(seeded(nn.BatchNorm1d(8)).half(), settings)
    x, target = batch(16)

    assert executor(x.half(), target)[1].isfinite().all()


def test_an_operator_that_torch_lacks_is_an_error_that_names_versions() -> None:
    with pytest.raises(ImportError) as caught:
        half_precision._overloads("addmm no_such_operator")

    assert str(caught.value) == (
        "popdist needs torch.ops.aten.no_such_operator, which torch "
        f"{torch.__version__} does not have. Without it, float16 has other results "
        "than on an IPU. Install torch 2.10 to 2.15, with which popdist was tried."
    )
