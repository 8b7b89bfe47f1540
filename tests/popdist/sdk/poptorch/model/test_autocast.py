import copy
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from poptorch_models import Classifier, batch, options, seeded
from torch import nn
from torch.nn import functional

import poptorch
from poptorch import autocasting
from poptorch.autocasting import Policy

HALF, FLOAT = torch.float16, torch.float32
SQUARE = torch.rand(3, 3, generator=torch.Generator().manual_seed(1))


class Calls(nn.Module):
    """Calls a function on its inputs, in a region or not."""

    def __init__(self, function: Callable[..., Any], enabled: bool | None = True):
        super().__init__()
        self.function = function
        self.enabled = enabled

    def forward(self, *args: Any) -> Any:
        if self.enabled is None:
            return self.function(*args)
        with poptorch.autocast(enabled=self.enabled):
            return self.function(*args)


def run(
    model: nn.Module | Callable[..., Any],
    *inputs: Any,
    policy: Policy | None = None,
    mixed: poptorch.HalfFloatCastingBehavior | None = None,
) -> Any:
    """Run a model, or a function in a region, by an executor."""
    settings = options()
    if policy is not None:
        settings.Precision.autocastPolicy(policy)
    if mixed is not None:
        settings.Precision.halfFloatCasting(mixed)
    module = model if isinstance(model, nn.Module) else Calls(model)
    return poptorch.inferenceModel(module, settings)(*inputs)


def product(x: torch.Tensor) -> torch.Tensor:
    return x @ x


# --- Regions.


@pytest.mark.parametrize("arguments", [(), (True,), (False,)])
def test_a_decorated_function_is_a_region(arguments: tuple[bool, ...]) -> None:
    class Decorated(nn.Module):
        @poptorch.autocast(*arguments)
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Return the square."""
            return product(x)

    result = run(Decorated(), SQUARE)

    assert Decorated.forward.__doc__ == "Return the square."
    assert result.dtype is (FLOAT if False in arguments else HALF)
    torch.testing.assert_close(result.float(), SQUARE @ SQUARE, rtol=0.01, atol=0.001)


def test_the_innermost_region_counts() -> None:
    def regions(x: torch.Tensor) -> list[torch.Tensor]:
        found = [product(x)]
        with poptorch.autocast(False):
            found.append(product(x))
            with poptorch.autocast():
                found.append(product(x))
            found.append(product(x))
        return [*found, product(x)]

    found = [one.dtype for one in run(regions, SQUARE)]

    assert found == [HALF, FLOAT, HALF, FLOAT, HALF]
    # Nothing is cast where nothing asks.
    assert run(Calls(product, None), SQUARE).dtype is FLOAT


def test_an_error_in_a_region_ends_it() -> None:
    class Fails(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with poptorch.autocast():
                raise ValueError("here")

    class Recovers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fails = Fails()
            self.fails.autocast()

        def forward(self, x: torch.Tensor) -> Any:
            before = product(x)
            with pytest.raises(ValueError, match="here"):
                self.fails(x)
            with pytest.raises(ValueError, match="here"), poptorch.autocast(True):
                raise ValueError("here")
            after = product(x)
            with poptorch.autocast():
                return before, after, product(x)

    found = [one.dtype for one in run(Recovers(), SQUARE)]

    assert found == [FLOAT, FLOAT, HALF]


def test_regions_have_no_effect_on_the_host() -> None:
    model = Calls(product)
    model.autocast()

    with poptorch.autocast():
        assert model(SQUARE).dtype is FLOAT
        assert run(Calls(product, None), SQUARE).dtype is FLOAT


def test_what_runs_on_the_host_within_a_model_is_not_cast() -> None:
    on_host = poptorch.CPU(product, "product")

    found = run(lambda x: [product(x), on_host(x), product(x)], SQUARE)

    assert [one.dtype for one in found] == [HALF, FLOAT, HALF]


def test_threads_have_regions_of_their_own() -> None:
    met = threading.Barrier(2)

    def waits(x: torch.Tensor) -> Any:
        met.wait(200)
        found = product(x)
        met.wait(200)
        return found

    shared = nn.Linear(3, 3)
    models = [Calls(waits, True), Calls(waits, False)]
    for model in models:
        model.shared = shared
    executors = [poptorch.inferenceModel(model, options()) for model in models]
    found: dict[int, list[torch.dtype]] = {}

    def work(index: int) -> None:
        found[index] = [executors[index](SQUARE).dtype for _ in range(3)]

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    # The second one also compiles, and so passes the barrier as often.
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(200)

    assert found == {0: [HALF] * 3, 1: [FLOAT] * 3}


# --- Modules.


def types_of(model: nn.Sequential, x: torch.Tensor) -> list[torch.dtype]:
    found = []
    hooks = [
        part.register_forward_hook(lambda _, __, y: found.append(y.dtype))
        for part in model
    ]
    run(model, x)
    for hook in hooks:
        hook.remove()
    return found[-len(model) :]


def stack() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(3, 3),
        nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)),
        nn.Linear(3, 3),
    )


def test_a_setting_holds_for_the_modules_inside() -> None:
    model = stack()
    assert types_of(model, SQUARE) == [FLOAT] * 3
    model.autocast()
    assert types_of(model, SQUARE) == [HALF] * 3
    model[1].autocast(False)
    assert types_of(model, SQUARE) == [HALF, HALF, HALF]
    model[1].float()
    assert [p.dtype for p in model.parameters()] == [FLOAT] * 8


def test_a_module_without_casts_computes_in_the_type_of_its_inputs() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> Any:
            return self.first(x), self.second(x)

    model = Two()
    model.autocast()
    model.second.autocast(False)
    assert [one.dtype for one in run(model, SQUARE)] == [HALF, FLOAT]

    model.autocast(False)
    model.first.autocast(True)
    assert [one.dtype for one in run(model, SQUARE)] == [HALF, FLOAT]
    copied = pickle.loads(pickle.dumps(copy.deepcopy(model.first)))
    assert run(copied, SQUARE).dtype is HALF
    assert set(copied.state_dict()) == {"weight", "bias"}


def test_a_convolution_without_casts_follows_one_with_them() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 2), nn.ReLU(), nn.Conv2d(2, 1, 2))
    model.autocast()
    model[1].autocast(False)
    model[2].autocast(False)
    x = SQUARE[None, None]

    expected = model(x)
    assert types_of(model, x) == [HALF] * 3
    torch.testing.assert_close(run(model, x).float(), expected, rtol=0.01, atol=0.001)


def test_options_turn_all_casts_off() -> None:
    settings = options()
    settings.Precision.autocastEnabled(False)
    model = stack()
    model.autocast()

    assert poptorch.inferenceModel(model, settings)(SQUARE).dtype is FLOAT
    regions = poptorch.inferenceModel(Calls(product), settings)
    assert regions(SQUARE).dtype is FLOAT


# --- Policies.


@pytest.mark.parametrize(
    "spelled",
    [
        lambda x: x @ x,
        lambda x: x.matmul(x),
        lambda x: x.__rmatmul__(x),
        lambda x: torch.mm(x, x),
        lambda x: functional.linear(x, x),
        lambda x: torch.addmm(x, x, x),
        lambda x: functional.conv1d(x[None], x[None]),
        lambda x: functional.scaled_dot_product_attention(x, x, x),
        nn.Conv2d(1, 1, 1, padding=1, padding_mode="circular"),
    ],
)
def test_products_and_convolutions_are_half(spelled: Callable[..., Any]) -> None:
    x = SQUARE[None, None] if isinstance(spelled, nn.Module) else SQUARE

    assert run(lambda x: spelled(x), x).dtype is HALF


@pytest.mark.parametrize(
    "policy",
    [
        Policy(fp16=[torch.relu, torch.mul]),
        Policy(fp16=[functional.relu, torch.Tensor.mul], fp32=[torch.relu]),
        Policy(fp16=[torch.multiply, nn.ReLU]),
    ],
)
def test_operations_are_listed_by_any_of_their_names(policy: Policy) -> None:
    def spelled(x: torch.Tensor) -> list[torch.Tensor]:
        return [2 * x, x * 2, torch.mul(x, x), x + x, nn.ReLU()(x), x - 1, 1 - x]

    found = [one.dtype for one in run(spelled, SQUARE, policy=policy)]

    assert found == [HALF, HALF, HALF, FLOAT, HALF, FLOAT, FLOAT]


def test_each_list_casts_as_documented() -> None:
    policy = Policy(
        fp16=[torch.relu],
        fp32=[torch.bmm],
        promote=[torch.dot, torch.cat],
        demote=[torch.add],
    )

    def uses(x: torch.Tensor) -> list[torch.Tensor]:
        half, row = x.half(), x[0]
        return [
            torch.relu(x),
            torch.bmm(half[None], half[None]),
            torch.dot(row, row.half()),
            torch.dot(row.half(), row.half()),
            torch.cat([x, half]),
            x + half,
            half + x,
            x + x,
            # Of no list.
            x * half,
            half * half,
            torch.exp(x),
        ]

    found = [one.dtype for one in run(uses, SQUARE, policy=policy)]

    halves = [HALF, FLOAT, FLOAT, HALF, FLOAT, HALF, HALF, FLOAT]
    assert found == [*halves, FLOAT, HALF, FLOAT]


def test_modules_are_listed_by_their_classes() -> None:
    policy = Policy(fp16=[nn.LayerNorm, nn.Embedding], fp32=[nn.Linear])

    class Several(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(4, 3)
            self.norm, self.linear = nn.LayerNorm(3), nn.Linear(3, 3)

        @poptorch.autocast()
        def forward(self, x: torch.Tensor) -> Any:
            embedded = self.embedding(x)
            normal = self.norm(embedded.float())
            return embedded, normal, self.linear(normal), embedded.double().float()

    found = run(Several(), torch.tensor([1, 2]), policy=policy)

    assert [one.dtype for one in found] == [HALF, HALF, FLOAT, FLOAT]


def test_the_products_in_multi_head_attention_are_cast() -> None:
    attention = nn.MultiheadAttention(4, 2)
    expected, _ = attention(*[torch.ones(3, 1, 4)] * 3)

    class Attends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = attention

        def forward(self, x: torch.Tensor) -> Any:
            return self.attention(x, x, x)[0]

    model = Attends()
    model.autocast()
    found = run(model, torch.ones(3, 1, 4))
    assert found.dtype is HALF
    torch.testing.assert_close(found.float(), expected, rtol=0.01, atol=0.002)


@pytest.mark.parametrize("up", [False, True])
def test_mixed_inputs_that_torch_refuses_are_cast(up: bool) -> None:
    def uses(x: torch.Tensor) -> list[torch.Tensor]:
        half, at = x.half(), (torch.tensor([0]),)
        kept = x.clone()
        kept[at] = half[:1]
        return [
            functional.linear(half, x),
            torch.einsum("ij,jk->ik", x, half),
            functional.layer_norm(x, (3,), half[0]),
            torch.index_put(half, at, x[:1]),
            # In place, the type of what is changed stays.
            kept,
        ]

    behavior = poptorch.HalfFloatCastingBehavior
    mixed = behavior.HalfUpcastToFloat if up else behavior.Default
    found = run(uses, SQUARE, policy=Policy(), mixed=mixed)

    assert [one.dtype for one in found] == [FLOAT if up else HALF] * 4 + [FLOAT]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_take_half_inputs(kind: type[nn.Module]) -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.layer = nn.Linear(3, 3), kind(3, 3)

        def forward(self, x: torch.Tensor) -> Any:
            return self.layer(self.first(x)[None])[0]

    model = Recurrent()
    model.autocast()
    assert run(model, SQUARE).dtype is FLOAT
    listed = Policy(fp16=[getattr(torch, kind.__name__.lower(), torch.rnn_tanh)])
    assert run(model, SQUARE, policy=listed).dtype is HALF


def test_what_is_changed_in_place_is_never_a_copy() -> None:
    policy = Policy(fp16=[torch.relu, torch.add, torch.mm, functional.dropout])

    def uses(x: torch.Tensor) -> Any:
        negative, out = -x, torch.empty(3, 3)
        same = functional.relu(negative, inplace=True)
        dropped = functional.dropout(negative, 0.5, True, True)
        added = x.clone()
        added.add_(x)
        torch.mm(x, x, out=out)
        return same is negative, dropped is negative, negative, added, out

    same, dropped, *changed = run(uses, SQUARE, policy=policy)

    assert same
    assert dropped
    assert [one.dtype for one in changed] == [FLOAT] * 3
    assert changed[0].eq(0).all()
    torch.testing.assert_close(changed[1:], [SQUARE * 2, SQUARE @ SQUARE])


@pytest.mark.parametrize("stored", [FLOAT, HALF])
@pytest.mark.parametrize("listed", ["fp16", "fp32"])
def test_running_statistics_are_those_of_the_module(
    listed: str, stored: torch.dtype
) -> None:
    norm = nn.BatchNorm1d(3).to(stored)
    norm.autocast()
    x = (SQUARE * 5).to(stored)
    plain = nn.BatchNorm1d(3)
    plain(x.float())

    result = run(norm, x, policy=Policy(**{listed: [nn.BatchNorm1d]}))

    assert result.dtype is (HALF if listed == "fp16" else FLOAT)
    for mine, expected in zip(norm.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(mine.float(), expected.float(), rtol=0.01, atol=0)
    assert next(norm.buffers()).dtype is stored


def test_entries_of_a_policy_are_checked() -> None:
    with pytest.raises(ValueError, match="'matmul' is in a list"):
        Policy(fp16=["matmul"])
    with pytest.raises(ValueError, match="neither a function of torch nor a class"):
        Policy(fp16=[torch.Tensor])
    with pytest.raises(ValueError, match=r"instance of poptorch\.autocasting.Policy"):
        options().Precision.autocastPolicy([torch.mm])
    policy = Policy([torch.mm], [nn.Linear])
    settings = options()
    assert settings.Precision.autocastPolicy(policy) is settings.Precision
    assert settings.Precision.autocast_policy is policy
    assert "fp16=['mm'], fp32=['Linear']" in repr(settings.clone())
    assert options().Precision.autocast_policy is poptorch.autocasting.default


# --- Training.


def trained(
    model: nn.Module, settings: poptorch.Options, steps: int = 4
) -> poptorch.PoplarExecutor:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    executor = poptorch.trainingModel(model, settings, optimizer)
    x, target = batch(2 * 8)
    for _ in range(steps):
        executor(x, target)
    return executor


def test_weights_stay_float32_and_train_as_without_casts() -> None:
    settings = (2, 2, 2)
    model = seeded(nn.LayerNorm(8))
    plain = copy.deepcopy(model)
    model.autocast()
    executor = trained(model, options(*settings))
    trained(plain, options(*settings))

    assert executor._state.compiled.half
    for mine, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert mine.dtype is FLOAT
        assert not mine.equal(other)
        torch.testing.assert_close(mine, other, rtol=0.05, atol=0.005)
    # More than float16 has of the mantissa.
    weight = model.layers[0].weight
    assert not weight.half().float().equal(weight)
    assert [one.dtype for one in executor(*batch(16))] == [HALF, HALF]


def test_a_region_that_was_not_compiled_is_refused() -> None:
    model = Calls(product, None)
    executor = poptorch.inferenceModel(model, options())
    executor(SQUARE)
    executor.model.enabled = True

    with pytest.raises(poptorch.Error, match="entered none when it was compiled"):
        executor(SQUARE)


def test_a_region_elsewhere_changes_no_bit() -> None:
    first, second = seeded(), seeded()
    trained(first, options(2))
    poptorch.autocast()
    executor = trained(second, options(2))

    assert not executor._state.compiled.half
    assert executor._state.compiled.casts is False
    for mine, other in zip(first.parameters(), second.parameters(), strict=True):
        assert mine.equal(other)


def test_saved_models_keep_their_casts(tmp_path: Path) -> None:
    model = seeded()
    model.autocast()
    settings = options(2)
    settings.Precision.autocastPolicy(Policy(fp16=[nn.Linear]))
    executor = trained(model, settings)
    executor.save(str(tmp_path))
    loaded = poptorch.load(str(tmp_path))
    x, target = batch(16)

    for _ in range(2):
        mine, other = executor(x, target), loaded(x, target)
        assert mine[0].dtype is HALF
        assert mine[0].equal(other[0])


def test_the_cache_keeps_models_of_several_policies_apart(tmp_path: Path) -> None:
    def compiled(policy: Policy, enabled: bool) -> bool:
        settings = options()
        settings.enableExecutableCaching(str(tmp_path))
        settings.Precision.autocastPolicy(policy)
        model = Classifier()
        if enabled:
            model.autocast()
        executor = poptorch.trainingModel(model, settings)
        executor.compile(*batch(4))
        return executor._state.compiled.casts

    first, other = Policy(fp16=[torch.mm]), Policy(fp16=[functional.linear])
    for _ in range(2):
        assert not compiled(first, False)
        assert compiled(first, True)
        assert compiled(other, True)
    assert len(list(tmp_path.glob("*.json"))) == 3


def test_blocks_and_regions_may_be_mixed() -> None:
    class Piped(Classifier):
        def forward(self, x: torch.Tensor, target: torch.Tensor) -> Any:
            with poptorch.Block("only", ipu_id=0):
                return super().forward(x, target)

    torch.manual_seed(1)
    model = Piped()
    model.layers = poptorch.BeginBlock(model.layers, "layers", ipu_id=0)
    model.layers[0].autocast()
    executor = trained(model, options(2, 2))

    assert executor._state.compiled.casts
    assert executor(*batch(16))[1].dtype is HALF


def test_an_operation_that_torch_lacks_is_an_error_that_names_versions() -> None:
    with pytest.raises(ImportError) as caught:
        autocasting._operations("addmm no_such_operation")

    assert str(caught.value) == (
        "popdist needs torch:no_such_operation, which torch "
        f"{torch.__version__} does not have. Without it, automatic casts miss an "
        "operation. Install torch 2.10 to 2.15, with which popdist was tried."
    )
