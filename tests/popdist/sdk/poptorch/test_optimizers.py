import copy
import logging
import pickle
from collections.abc import Callable
from inspect import signature
from typing import Any

import pytest
import torch
from poptorch_models import batch, options, seeded, train_plainly
from torch import nn

import poptorch


def stepped(
    optimizer: torch.optim.Optimizer, weights: list[nn.Parameter], steps: int = 4
) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        for weight in weights:
            weight.grad = torch.randn(weight.shape, generator=generator)
        optimizer.step()
    return [weight.detach() for weight in weights]


def weights() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    return [nn.Parameter(torch.randn(n, generator=generator)) for n in (3, 7)]


@pytest.mark.parametrize(
    ("name", "arguments", "extra"),
    [
        (
            "SGD",
            {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1, "nesterov": True},
            {"velocity_scaling": 2.0, "accum_type": torch.float16},
        ),
        ("SGD", {"lr": 0.1}, {"use_combined_accum": True, "loss_scaling": 4.0}),
        (
            "Adam",
            {"lr": 0.1, "betas": (0.8, 0.9), "weight_decay": 0.1},
            {"first_order_momentum_accum_type": torch.float16},
        ),
        ("AdamW", {"lr": 0.1, "weight_decay": 0.1}, {"bias_correction": True}),
        ("RMSprop", {"lr": 0.1, "momentum": 0.5, "centered": True}, {}),
    ],
)
def test_optimizers_do_what_those_of_torch_do(
    name: str, arguments: dict[str, Any], extra: dict[str, Any]
) -> None:
    mine, other = weights(), weights()
    ours = getattr(poptorch.optim, name)(mine, **arguments, **extra)
    theirs = getattr(torch.optim, name)(other, **arguments)

    for one, expected in zip(stepped(ours, mine), stepped(theirs, other), strict=True):
        assert one.equal(expected)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("SGD", {"max_grad_norm": 0.5}),
        ("Adam", {"max_grad_norm": 0.5, "bias_correction": False}),
        ("AdamW", {"max_grad_norm": 0.5}),
        ("RMSprop", {"use_tf_variant": True}),
        ("LAMB", {}),
    ],
)
def test_a_closure_computes_the_gradients_of_a_step(
    name: str, arguments: dict[str, Any]
) -> None:
    (weight,), (other,) = weights()[:1], weights()[:1]
    optimizer = getattr(poptorch.optim, name)([weight], lr=0.1, **arguments)
    expected = getattr(poptorch.optim, name)([other], lr=0.1, **arguments)

    def closure() -> torch.Tensor:
        loss = 10 * weight.square().sum()
        loss.backward()
        return loss

    loss = optimizer.step(closure)
    (10 * other.square().sum()).backward()
    expected.step()

    assert loss == 10 * weights()[0].square().sum()
    assert weight.equal(other)


def one_step(make: Callable[[list[nn.Parameter]], torch.optim.Optimizer]) -> float:
    """Return what a weight of 2 becomes by one step with a gradient of 0.5."""
    weight = nn.Parameter(torch.tensor([2.0]))
    optimizer = make([weight])
    weight.grad = torch.tensor([0.5])
    optimizer.step()
    return weight.item()


def test_moments_without_bias_correction() -> None:
    # The moments are 0.05 and 0.00025, so the update is 0.05 / sqrt(0.00025).
    adam = one_step(lambda w: poptorch.optim.Adam(w, lr=0.1, bias_correction=False))
    adamw = one_step(
        lambda w: poptorch.optim.AdamW(
            w, lr=0.1, weight_decay=0.5, bias_correction=False
        )
    )

    assert adam == pytest.approx(2 - 0.1 * 3.16228, abs=1e-5)
    assert adamw == pytest.approx(2 * 0.95 - 0.1 * 3.16228, abs=1e-5)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("Adam", {"bias_correction": False}),
        ("AdamW", {"bias_correction": False, "weight_decay": 0.0}),
        ("RMSprop", {"use_tf_variant": True}),
        ("SGD", {}),
    ],
)
def test_maximizing_is_a_step_in_the_other_direction(
    name: str, arguments: dict[str, Any]
) -> None:
    optimizer = getattr(poptorch.optim, name)
    down = one_step(lambda w: optimizer(w, lr=0.1, **arguments))
    up = one_step(lambda w: optimizer(w, lr=0.1, maximize=True, **arguments))

    assert down < 2
    assert up - 2 == pytest.approx(2 - down)


def test_weight_decay_leaves_the_gradient_as_it_is() -> None:
    weight = nn.Parameter(torch.tensor([2.0]))
    adam = poptorch.optim.Adam([weight], weight_decay=0.5, bias_correction=False)
    weight.grad = torch.tensor([0.5])

    adam.step()

    assert weight.grad.item() == 0.5


def test_lamb_scales_the_update_to_the_norm_of_the_weight() -> None:
    # The update itself is 1: lr * |w| / |u| * u.
    assert one_step(lambda w: poptorch.optim.LAMB(w, lr=0.1)) == pytest.approx(
        2 - 0.1 * 2
    )
    assert one_step(
        lambda w: poptorch.optim.LAMB(w, lr=0.1, max_weight_norm=0.5)
    ) == pytest.approx(2 - 0.1 * 0.5)
    assert one_step(
        lambda w: poptorch.optim.LAMB(w, lr=0.1, weight_decay=1, bias_correction=False)
    ) == pytest.approx(2 - 0.1 * 2)


def test_rmsprop_as_tensorflow_has_it() -> None:
    # The mean square is 1 at first, and then 0.99 + 0.01 * 0.25; eps is added to it
    # before the square root.
    found = one_step(
        lambda w: poptorch.optim.RMSprop(w, lr=0.1, eps=0.01, use_tf_variant=True)
    )

    assert found == pytest.approx(2 - 0.1 * 0.5 / 1.0025**0.5)


@pytest.mark.parametrize(
    ("name", "arguments"), [("AdamW", {"eps": 1.0}), ("SGD", {"momentum": 0.9})]
)
def test_gradients_are_clipped_to_a_norm_in_all(
    name: str, arguments: dict[str, Any]
) -> None:
    mine, other = weights(), weights()
    make, torchs = getattr(poptorch.optim, name), getattr(torch.optim, name)
    ours = make(mine, lr=0.1, max_grad_norm=0.01, **arguments)
    theirs = torchs(other, lr=0.1, **arguments)
    generator = torch.Generator().manual_seed(0)
    for one, two in zip(mine, other, strict=True):
        one.grad = torch.randn(one.shape, generator=generator)
        two.grad = one.grad.clone()
    nn.utils.clip_grad_norm_(other, 0.01)

    ours.step()
    theirs.step()

    for one, two in zip(mine, other, strict=True):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "LAMB"])
@pytest.mark.parametrize(
    "copied",
    [copy.copy, copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))],
    ids=["copy", "deepcopy", "pickled"],
)
def test_copies_of_an_optimizer_have_all_of_its_attributes(
    copied: Callable[[Any], Any], name: str
) -> None:
    make = getattr(poptorch.optim, name)
    optimizer = copied(
        make(weights(), lr=0.1, loss_scaling=4.0, accum_type=torch.float16)
    )

    assert optimizer.loss_scaling == 4.0
    assert optimizer.accum_type == torch.float16
    assert optimizer.variable_attrs.isConstant("weight_decay")
    assert not optimizer.variable_attrs.isConstant("lr")
    for weight in optimizer.param_groups[0]["params"]:
        weight.grad = torch.ones_like(weight)
    optimizer.step()


def test_an_optimizer_shows_its_arguments_and_refuses_others() -> None:
    class Own(poptorch.optim.AdamW):
        def __init__(self, params: Any, rate: float) -> None:
            super().__init__(params, lr=rate)

    parameters = list(signature(poptorch.optim.AdamW).parameters)

    assert parameters[:3] == ["params", "lr", "betas"]
    assert list(signature(Own).parameters) == ["params", "rate"]
    with pytest.raises(TypeError, match=r"^AdamW\(\) got an unexpected .* 'learning'$"):
        poptorch.optim.AdamW([nn.Parameter(torch.ones(1))], learning=0.1)


def test_arguments_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="velocity_accum_type is given, but with"):
        poptorch.optim.SGD(
            weights(), use_combined_accum=True, velocity_accum_type=torch.float32
        )
    with pytest.raises(ValueError, match="loss_scaling is 0, but must be above 0"):
        poptorch.optim.Adam(weights(), loss_scaling=0)
    with pytest.raises(ValueError, match=r"accum_type is torch\.int32"):
        poptorch.optim.LAMB(weights(), accum_type=torch.int32)


def test_attributes_at_their_defaults_are_constants() -> None:
    optimizer = poptorch.optim.SGD(weights(), lr=0.1, momentum=0.0)
    attrs = optimizer.variable_attrs

    assert not attrs.isConstant("lr")
    assert not attrs.isConstant("momentum")
    assert attrs.isConstant("weight_decay")
    assert not attrs.isConstant("no such attribute")
    attrs.markAsVariable("weight_decay")
    attrs.markAsConstant("lr")
    assert attrs.isConstant("lr")
    assert not attrs.isConstant("weight_decay")
    with pytest.raises(AssertionError, match="has no attribute 'speed'"):
        attrs.markAsVariable("speed")


@pytest.mark.parametrize(
    ("name", "argument"),
    [("SGD", "maximize"), ("Adam", "amsgrad"), ("RMSprop", "centered")],
)
def test_all_arguments_of_torch_can_be_constants(name: str, argument: str) -> None:
    make = getattr(poptorch.optim, name)
    given = make(weights(), lr=0.1, **{argument: False}).variable_attrs
    default = make(weights(), lr=0.1).variable_attrs

    assert not given.isConstant(argument)
    given.markAsConstant(argument)
    assert given.isConstant(argument)
    assert default.isConstant(argument)


def trained(
    change: Callable[[Any, torch.optim.Optimizer], object],
    make: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
) -> nn.Module:
    model = seeded()
    optimizer = make(model.parameters(), lr=0.1, momentum=0.9)
    executor = poptorch.trainingModel(model, options(2), optimizer)
    executor(*batch(4))
    change(executor, optimizer)
    executor(*batch(4))
    return model


def same(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(mine.equal(theirs) for mine, theirs in pairs)


def test_changes_of_an_optimizer_take_effect_when_it_is_set() -> None:
    def slow_down(_: Any, optimizer: torch.optim.Optimizer) -> None:
        optimizer.param_groups[0]["lr"] = 0.0

    def set_slower(executor: Any, optimizer: torch.optim.Optimizer) -> None:
        slow_down(executor, optimizer)
        executor.setOptimizer(optimizer)

    unchanged = trained(lambda executor, optimizer: None)

    assert same(trained(slow_down), unchanged)
    assert not same(trained(set_slower), unchanged)


def test_another_optimizer_goes_on_with_the_momenta() -> None:
    def replace(executor: Any, _: torch.optim.Optimizer) -> None:
        executor.setOptimizer(
            torch.optim.SGD(executor.parameters(), lr=0.1, momentum=0.9)
        )

    assert same(trained(replace), trained(lambda executor, optimizer: None))


def test_a_constant_attribute_cannot_change_once_compiled() -> None:
    def change(executor: Any, optimizer: torch.optim.Optimizer) -> None:
        optimizer.param_groups[0]["weight_decay"] = 0.5
        executor.setOptimizer(optimizer)

    with pytest.raises(poptorch.Error, match="weight_decay is constant, because"):
        trained(change, poptorch.optim.SGD)


def test_schedulers_work_with_the_users_optimizer() -> None:
    model = seeded()
    plain = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    executor = poptorch.trainingModel(model, options(2), optimizer)
    inputs = batch(4)

    for _ in range(3):
        executor(*inputs)
        scheduler.step()
        executor.setOptimizer(optimizer)
    for lr in (0.1, 0.05, 0.025):
        micro_batches = list(zip(*(one.split(2) for one in inputs), strict=True))
        expected = torch.optim.SGD(plain.parameters(), lr=lr)
        train_plainly(plain, expected, iter([micro_batches]))

    for mine, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("half", [False, True])
def test_the_state_of_an_optimizer_can_be_saved_and_loaded(half: bool) -> None:
    def build() -> tuple[nn.Module, Any, Any]:
        model = seeded().half() if half else seeded()
        optimizer = poptorch.optim.Adam(model.parameters(), lr=0.01)
        return model, optimizer, poptorch.trainingModel(model, options(), optimizer)

    x, target = batch(4)
    x = x.half() if half else x
    model, optimizer, executor = build()
    executor(x, target)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    executor(x, target)
    other, loaded, again = build()

    again.load_state_dict(saved[0])
    loaded.load_state_dict({**saved[1], "ipu_state": None, "ipu_param": None})
    again(x, target)

    assert same(model, other)


def test_loss_scaling_keeps_small_gradients_of_float16() -> None:
    def change(loss_scaling: float) -> torch.Tensor:
        model = nn.Linear(1, 1, bias=False).half()
        nn.init.ones_(model.weight)

        class Tiny(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.model = model

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                # The gradient is 2 ** -26, which float16 cannot represent.
                small = self.model(x) * 2.0**-13 * 2.0**-13
                return poptorch.identity_loss(small, reduction="sum")

        optimizer = poptorch.optim.SGD(
            model.parameters(), lr=2.0**22, loss_scaling=loss_scaling
        )
        poptorch.trainingModel(Tiny(), options(), optimizer)(torch.ones(1, 1).half())
        return 1 - model.weight.detach().float()

    assert change(1.0).item() == 0
    assert change(1024.0).item() == 2.0**-4


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (
            lambda w: torch.optim.Adagrad(w, lr=0.1),
            AssertionError,
            "Unsupported optimizer type Adagrad. Supported are SGD, Adam, AdamW and "
            "RMSprop of torch.optim and of poptorch.optim, poptorch.optim.LAMB, and "
            "subclasses of these.",
        ),
        (
            lambda w: poptorch.optim.AdamW(w, lr=0.1, amsgrad=True),
            ValueError,
            "Only non-amsgrad Adam/AdamW optimizers are supported by PopTorch. Make "
            "the optimizer with amsgrad=False.",
        ),
    ],
)
def test_optimizers_that_no_ipu_trains_with_are_refused(
    make: Callable[[Any], torch.optim.Optimizer], error: type[Exception], text: str
) -> None:
    model = seeded()
    executor = poptorch.trainingModel(model, options())

    with pytest.raises(error) as at_once:
        poptorch.trainingModel(seeded(), options(), make(seeded().parameters()))
    with pytest.raises(error) as later:
        executor.setOptimizer(make(model.parameters()))

    assert str(at_once.value) == str(later.value) == text


@pytest.mark.parametrize("base", [torch.optim.AdamW, poptorch.optim.AdamW])
def test_a_subclass_of_an_optimizer_trains_as_its_base_class_and_says_so(
    base: type[torch.optim.Optimizer], capsys: pytest.CaptureFixture[str]
) -> None:
    class Own(base):  # type: ignore[misc, valid-type]
        def step(self, closure: Any = None) -> None:
            raise AssertionError("The step of the subclass is called.")

    def trained(cls: Callable[..., torch.optim.Optimizer]) -> nn.Module:
        model = seeded()
        executor = poptorch.trainingModel(
            model, options(), cls(model.parameters(), lr=0.1, weight_decay=0.5)
        )
        for learning_rate in (0.1, 0.2):
            executor(*batch(4))
            executor.setOptimizer(
                cls(model.parameters(), lr=learning_rate, weight_decay=0.5)
            )
        executor(*batch(4))
        return model

    plain, own = trained(base), trained(Own)

    for expected, weight in zip(plain.parameters(), own.parameters(), strict=True):
        assert weight.equal(expected)
    assert not own.layers[0].weight.equal(seeded().layers[0].weight)
    (warning,) = capsys.readouterr().err.splitlines()
    assert warning.endswith(
        "[warning] Poptorch does not run Python optimizer code directly. Own is a "
        f"subclass of {base.__module__.rpartition('.')[0]}.AdamW, and trains as that "
        "does: its own step() is not called."
    )


def test_nesterov_momentum_trains_as_in_torch() -> None:
    model, plain = seeded(), seeded()
    arguments: dict[str, Any] = {"lr": 0.1, "momentum": 0.9, "nesterov": True}
    optimizer = torch.optim.SGD(model.parameters(), **arguments)
    executor = poptorch.trainingModel(model, options(), optimizer)

    for _ in range(3):
        executor(*batch(4))
    train_plainly(
        plain,
        torch.optim.SGD(plain.parameters(), **arguments),
        iter([[batch(4)]] * 3),
    )

    for mine, expected in zip(model.parameters(), plain.parameters(), strict=True):
        assert mine.equal(expected)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("is_new", [False, True])
def test_momentum_that_is_set_later_begins_at_zero(half: bool, is_new: bool) -> None:
    model = OneWeight().half() if half else OneWeight()
    x = torch.ones(1, 1).half() if half else torch.ones(1, 1)
    optimizer = poptorch.optim.RMSprop(
        model.parameters(), lr=0.25, alpha=0.0, momentum=0.0
    )
    executor = poptorch.trainingModel(model, options(), optimizer)
    executor(x)
    if is_new:
        optimizer = poptorch.optim.RMSprop(
            model.parameters(), lr=0.25, alpha=0.0, momentum=0.0
        )
    optimizer.param_groups[0]["momentum"] = 0.5
    executor.setOptimizer(optimizer)

    executor(x)
    executor(x)

    # Each step is 0.25 times 1, then 1, then 1 plus 0.5.
    assert model.fc.weight.item() == 1 - 0.25 * (1 + 1 + 1.5)


def test_what_the_device_gets_of_an_optimizer_is_logged_when_it_changes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "poptorch:python")
    model = OneWeight()
    optimizer = poptorch.optim.AdamW(
        model.parameters(),
        lr=0.25,
        betas=(0.5, 0.75),
        loss_scaling=2.0,
        second_order_momentum_accum_type=torch.float16,
    )
    executor = poptorch.trainingModel(model, options(), optimizer)
    executor(torch.ones(1, 1))
    executor.setOptimizer(optimizer)
    optimizer.param_groups[0]["lr"] = 0.0
    executor.setOptimizer(optimizer)

    defaults = (
        "Updating graph optimizer with AdamW: accumType=float32, "
        "firstOrderMomentumAccumType=float32, secondOrderMomentumAccumType=float16, "
        "defaultLearningRate=0.25, defaultWeightDecay=0.01 (const), "
        "defaultEps=1e-08 (const), defaultBeta1=0.5, defaultBeta2=0.75, lossScaling=2"
    )
    group = (
        "Updating group 0 optimizer with AdamW: learningRate={}, "
        "weightDecay=0.01 (const), eps=1e-08 (const), beta1=0.5, beta2=0.75"
    )
    assert [line for line in caplog.messages if line.startswith("Updating")] == [
        defaults,
        group.format("0.25"),
        defaults,
        group.format("0"),
    ]


def test_attributes_of_torchs_optimizers_at_their_defaults_are_constants(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "poptorch:python")
    model = OneWeight()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.5)
    poptorch.trainingModel(model, options(), optimizer)(torch.ones(1, 1))

    assert (
        "Updating group 0 optimizer with SGD: velocityScaling=1 (const), "
        "learningRate=0.001, weightDecay=0 (const), momentum=0.5, dampening=0 (const)"
    ) in caplog.messages


def test_the_state_of_an_optimizer_that_is_not_compiled_is_what_was_loaded() -> None:
    model = OneWeight()
    first = poptorch.optim.Adam(model.parameters(), lr=0.5)
    executor = poptorch.trainingModel(model, options(), first)
    executor(torch.ones(1, 1))
    saved = copy.deepcopy(first.state_dict())
    second = poptorch.optim.Adam(model.parameters(), lr=0.1)

    second.load_state_dict(saved)

    assert second.state_dict()["ipu_param"] == saved["ipu_param"]
    executor.setOptimizer(second)
    parameters = second.state_dict()["ipu_param"]
    assert parameters["learningRate___specific___fc.weight"].item() == 0.5


@pytest.mark.parametrize("is_relaxed", [False, True])
def test_attributes_that_an_optimizer_gets_later_are_warned_of_once(
    is_relaxed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    model = seeded()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    opts = options().relaxOptimizerAttributesChecks(is_relaxed)
    executor = poptorch.trainingModel(model, opts, optimizer)
    optimizer.expected = True
    executor(*batch(4))

    for value in (1.0, 2.0):
        optimizer.lr = value
        optimizer.param_groups[0]["loss_scaling"] = value
        executor.setOptimizer(optimizer)

    lines = [line.split("] ")[-1] for line in capsys.readouterr().err.splitlines()]
    assert [line for line in lines if "unexpected" in line] == (
        []
        if is_relaxed
        else [
            "Ignoring unexpected optimizer attribute in SGD optimizer: ['lr']",
            "Ignoring unexpected group 0 attribute in SGD optimizer: ['loss_scaling']",
        ]
    )


def test_float16_accumulators_hold_running_means() -> None:
    def strategy(**arguments: Any) -> str:
        model = seeded()
        optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, **arguments)
        executor = poptorch.trainingModel(model, opts, optimizer)
        chosen = executor.options.Training
        return chosen.meanAccumulationAndReplicationReductionStrategy.name

    opts = options()
    assert strategy() == "Post"
    assert strategy(accum_type=torch.float16) == "Running"
    assert strategy(accum_type=torch.float16, use_combined_accum=True) == "Post"
    assert opts.Training.meanAccumulationAndReplicationReductionStrategy.name == "Post"

    def change(executor: Any, optimizer: Any) -> None:
        optimizer.accum_type = torch.float16
        executor.setOptimizer(optimizer)

    with pytest.raises(ValueError, match="the model is already compiled with Post"):
        trained(change, poptorch.optim.SGD)


class OneWeight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(1, 1, bias=False)
        nn.init.ones_(self.fc.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return poptorch.identity_loss(self.fc(x), reduction="sum")


def test_the_state_of_an_optimizer_has_what_is_on_the_device() -> None:
    model = OneWeight()
    optimizer = poptorch.optim.Adam(
        model.parameters(), lr=0.5, weight_decay=0.25, loss_scaling=2.0
    )
    executor = poptorch.trainingModel(model, options(), optimizer)
    before = optimizer.state_dict()
    executor.compile(torch.ones(1, 1))
    compiled = optimizer.state_dict()
    executor(torch.ones(1, 1))
    after = optimizer.state_dict()

    assert before["ipu_state"] is before["ipu_param"] is None
    assert {n: t.item() for n, t in compiled["ipu_state"].items()} == {
        "Accl1___fc.weight": 0,
        "Accl2___fc.weight": 0,
        "Step___fc.weight": 0,
    }
    # The gradient is 1, and 0.25 by the decay of the weight.
    assert {n: t.item() for n, t in after["ipu_state"].items()} == pytest.approx(
        {
            "Accl1___fc.weight": 0.125,
            "Accl2___fc.weight": 0.0015625,
            "Step___fc.weight": 1,
        }
    )
    assert {n: t.item() for n, t in after["ipu_param"].items()} == pytest.approx(
        {
            "lossScaling_FLOAT": 2,
            "learningRate___specific___fc.weight": 0.5,
            "weightDecay___specific___fc.weight": 0.25,
            "eps___specific___fc.weight": 1e-8,
            "beta1___specific___fc.weight": 0.9,
            "beta2___specific___fc.weight": 0.999,
        }
    )


def test_sgd_has_its_scaled_numbers_on_the_device() -> None:
    model = OneWeight()
    optimizer = poptorch.optim.SGD(
        model.parameters(), lr=0.5, weight_decay=0.25, loss_scaling=2.0
    )
    poptorch.trainingModel(model, options(), optimizer)(torch.ones(1, 1))

    state = optimizer.state_dict()

    assert state["ipu_state"] == {}
    assert {n: t.item() for n, t in state["ipu_param"].items()} == {
        "lossScaling_FLOAT": 2,
        "scaledLearningRate0___specific___fc.weight": 0.25,
        "weightDecayScaleFactor0___specific___fc.weight": 0.875,
        "momentum___specific___fc.weight": 0,
    }


MOMENTA = [
    ("SGD", {"momentum": 0.9}),
    ("AdamW", {}),
    ("RMSprop", {"momentum": 0.9, "centered": True}),
    ("RMSprop", {"use_tf_variant": True}),
    ("LAMB", {}),
]


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(("name", "arguments"), MOMENTA)
def test_momenta_are_loaded_from_the_state_of_the_device(
    name: str, arguments: dict[str, Any], half: bool
) -> None:
    make = getattr(poptorch.optim, name)
    x = torch.ones(1, 1).half() if half else torch.ones(1, 1)

    def build() -> tuple[nn.Module, Any, Any]:
        model = OneWeight().half() if half else OneWeight()
        optimizer = make(model.parameters(), lr=0.1, **arguments)
        return model, optimizer, poptorch.trainingModel(model, options(), optimizer)

    model, optimizer, executor = build()
    executor(x)
    weights, saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    # As PopTorch saves it: torch's part has no momenta.
    saved["state"] = {}
    if half:
        # As its older releases name them.
        saved["ipu_state"] = {
            name.replace("___", "___model."): value
            for name, value in saved["ipu_state"].items()
        }
    executor(x)
    after = copy.deepcopy(model)
    executor(x)

    # Into an optimizer that runs, and into one that is not compiled yet.
    optimizer.load_state_dict(saved)
    executor.load_state_dict(weights)
    executor(x)
    other, loaded, again = build()
    loaded.load_state_dict(saved)
    assert loaded.state_dict()["ipu_state"].keys() == saved["ipu_state"].keys()
    again.load_state_dict(weights)
    again(x)

    assert same(model, after)
    assert same(other, after)


def test_the_state_of_an_optimizer_of_torch_is_refused() -> None:
    optimizer = poptorch.optim.Adam(weights(), lr=0.1)

    with pytest.raises(RuntimeError, match="Only IPU optimizer states can be loaded"):
        optimizer.load_state_dict(torch.optim.Adam(weights()).state_dict())


def test_without_a_device_an_optimizer_has_no_state_on_it() -> None:
    model = OneWeight()
    optimizer = poptorch.optim.Adam(model.parameters(), lr=0.1)
    opts = options().useOfflineIpuTarget()
    poptorch.trainingModel(model, opts, optimizer).compile(torch.ones(1, 1))

    assert optimizer.state_dict()["ipu_state"] is None


def scaled(
    optimizer: torch.optim.Optimizer, model: nn.Module, **changes: Any
) -> poptorch.PoplarExecutor:
    """Return an executor of a model whose loss is scaled automatically."""
    opts = options()
    opts.Training.setAutomaticLossScaling(True)
    opts.anchorTensor("scale", "finalLossScale")
    for name, value in changes.items():
        opts._Popart.set(f"automaticLossScalingSettings.{name}", value)
    return poptorch.trainingModel(model, opts, optimizer)


def scales(
    executor: poptorch.PoplarExecutor, steps: int, dtype: torch.dtype = torch.half
) -> list[float]:
    found = []
    for _ in range(steps):
        executor(torch.ones(1, 1, dtype=dtype))
        found.append(executor.getAnchoredTensor("scale").item())
    return found


@pytest.mark.parametrize(
    "make", [poptorch.optim.SGD, torch.optim.SGD], ids=["extended", "torch"]
)
def test_the_loss_is_scaled_until_float16_gradients_are_large(
    make: type[torch.optim.Optimizer],
) -> None:
    model = OneWeight().half()
    executor = scaled(make(model.parameters(), lr=2.0**-10), model)

    # The gradient is 1 times the scale, and large above an eighth of 65504.
    assert scales(executor, 17) == [
        *(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096),
        *(8192, 4096, 8192, 4096),
    ]
    # Gradients are divided by it: each step is one of 2**-10.
    assert model.fc.weight.item() == 1 - 17 * 2.0**-10


def test_the_settings_of_automatic_loss_scaling_are_those_of_popart() -> None:
    model = OneWeight().half()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.0, loss_scaling=2.0)
    settings = {"binEdgeLocation": 7 / 65504, "updatePeriod": 2}

    assert scales(scaled(optimizer, model, **settings), 9) == [
        *(2, 2, 4, 4, 8, 8, 4, 4, 8)
    ]


def test_gradients_of_float32_scale_no_loss() -> None:
    model = OneWeight()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.0, loss_scaling=2.0)

    assert scales(scaled(optimizer, model), 3, torch.float32) == [2, 2, 2]


def test_the_scale_of_the_loss_goes_with_the_state_of_the_optimizer() -> None:
    model = OneWeight().half()
    first = poptorch.optim.Adam(model.parameters(), lr=0.0)
    executor = scaled(first, model)
    executor.compile(torch.ones(1, 1).half())
    assert first.state_dict()["ipu_state"]["lossScaleUpdateFactor"].item() == 1
    scales(executor, 3)
    saved = copy.deepcopy(first.state_dict())
    executor.destroy()

    other = poptorch.optim.Adam(model.parameters(), lr=0.0)
    other.load_state_dict(saved)
    executor = scaled(other, model)
    assert scales(executor, 2) == [8, 16]
    # One that brings none goes on with that of the device.
    executor.setOptimizer(poptorch.optim.Adam(model.parameters(), lr=0.0))
    assert scales(executor, 1) == [32]


def test_a_state_without_automatic_loss_scaling_has_no_factor() -> None:
    model = OneWeight().half()
    optimizer = poptorch.optim.Adam(model.parameters(), lr=0.1)
    poptorch.trainingModel(model, options(), optimizer)(torch.ones(1, 1).half())

    assert "lossScaleUpdateFactor" not in optimizer.state_dict()["ipu_state"]
