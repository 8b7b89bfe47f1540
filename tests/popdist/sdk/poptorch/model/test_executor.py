import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from poptorch_models import Classifier, batch, options, seeded
from torch import nn
from torch.nn import functional

import poptorch
from poptorch.model import model_state, timing


class Identity(nn.Module):
    def forward(self, x: Any) -> Any:
        return x


def sgd(model: nn.Module, **attributes: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, **attributes)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        pytest.param((poptorch.OutputMode.All,), [0, 1, 2, 3, 4, 5, 6, 7], id="all"),
        pytest.param((poptorch.OutputMode.Final,), [6, 7], id="final"),
        pytest.param((poptorch.OutputMode.EveryN, 2), [2, 3, 6, 7], id="every-2"),
        pytest.param((poptorch.OutputMode.Sum,), [12, 16], id="sum"),
    ],
)
def test_output_modes_choose_among_micro_batches(
    mode: tuple[Any, ...], expected: list[int]
) -> None:
    settings = options(replicas=2, iterations=4)
    settings.outputMode(*mode)
    executor = poptorch.inferenceModel(Identity(), settings)

    assert executor(torch.arange(8.0)).tolist() == expected


def test_a_single_scalar_has_no_dimensions() -> None:
    class Total(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sum()

    one = poptorch.inferenceModel(Total(), options())
    two = poptorch.inferenceModel(Total(), options(replicas=2))

    assert one(torch.ones(4)).shape == ()
    assert two(torch.ones(4)).tolist() == [2.0, 2.0]


def test_outputs_have_the_structure_that_forward_returns() -> None:
    executor = poptorch.inferenceModel(Identity(), options(replicas=2))
    x = torch.arange(4.0)

    found = executor({"a": [x, (x + 1, 5)], "b": None})

    assert found["a"][0].equal(x)
    assert found["a"][1][0].equal(x + 1)
    assert (found["a"][1][1], found["b"]) == (5, None)


def test_outputs_have_the_types_that_an_ipu_has() -> None:
    class Best(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.argmax(1)

    executor = poptorch.inferenceModel(Best(), options())

    assert executor(torch.eye(3)).dtype is torch.int32


def test_replicas_can_share_inputs() -> None:
    settings = options(replicas=4)
    settings.inputReplicaGrouping(2)
    executor = poptorch.inferenceModel(Identity(), settings)

    assert executor(torch.arange(2.0)).tolist() == [0, 0, 1, 1]


def test_a_wrong_batch_size_is_refused_before_anything_runs() -> None:
    model = seeded()
    before = copy.deepcopy(model.state_dict())
    executor = poptorch.trainingModel(model, options(3, 2, 2), sgd(model))

    with pytest.raises(poptorch.Error) as refusal:
        executor(*batch(23))

    assert isinstance(refusal.value, AssertionError)
    assert str(refusal.value).startswith(
        "Invalid batch dimension: In the input 0, the batch dimension (23) must be a "
        "multiple of poptorch.Options.deviceIterations (2) * "
        "poptorch.Options.replicationFactor (3) / "
        "poptorch.Options.inputReplicaGrouping (1) * "
        "poptorch.Options.Training.gradientAccumulation (2) = 12 because"
    )
    assert not executor.isCompiled()
    for name, value in model.state_dict().items():
        assert value.equal(before[name])


def test_inputs_must_be_like_those_of_the_first_call() -> None:
    executor = poptorch.inferenceModel(Identity(), options())
    executor(torch.ones(2, 3))

    with pytest.raises(poptorch.Error, match="runtime don't match") as refusal:
        executor(torch.ones(4, 3))

    assert "expected torch.Size([2, 3]) but got torch.Size([4, 3])" in str(
        refusal.value
    )


def test_an_executor_feels_like_its_module() -> None:
    model = seeded()
    executor = poptorch.trainingModel(model, options(), sgd(model))

    executor(*batch(4))

    assert executor.layers is model.layers
    assert list(executor.state_dict()) == list(model.state_dict())
    assert executor.layers[0].weight is model.layers[0].weight
    executor.eval()
    assert not model.training
    executor.train()
    assert model.training
    assert [name for name, _ in executor.named_parameters()] == [
        name for name, _ in model.named_parameters()
    ]
    with pytest.raises(AttributeError, match="nothing"):
        executor.nothing()


def test_a_module_is_wrapped_once_and_remains_what_it_was() -> None:
    model = seeded()
    executor = poptorch.trainingModel(model, options())

    with pytest.raises(RuntimeError) as refusal:
        poptorch.trainingModel(model, options())

    assert str(refusal.value) == (
        "Model has already been wrapped in 'poptorch.trainingModel'. Call "
        "model.destroy() on the model to unwrap before wrapping again."
    )
    assert isinstance(model, Classifier)
    assert type(model) is not Classifier
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert type(copied) is Classifier
    model.destroy()
    executor.destroy()
    assert type(model) is Classifier
    poptorch.trainingModel(model, options()).destroy()


def test_outputs_of_training_refuse_backward() -> None:
    executor = poptorch.trainingModel(seeded(), options())

    _, loss = executor(*batch(2))

    assert not loss.requires_grad
    with pytest.raises(poptorch.Error, match="cannot be called explicitly on outputs"):
        loss.backward()


def test_inference_uses_the_weights_that_training_has_reached() -> None:
    model = seeded()
    trainer = poptorch.trainingModel(model, options(), sgd(model))
    runner = poptorch.inferenceModel(trainer, options())
    x, target = batch(4)
    before = runner(x, target)[0]

    trainer(x, target)

    assert not runner(x, target)[0].equal(before)
    assert runner(x, target)[0].equal(model(x, target)[0])


def test_an_inference_model_accumulates_no_gradients() -> None:
    with pytest.raises(poptorch.Error, match="leave it as its default value"):
        poptorch.inferenceModel(seeded(), options(accumulation=2))


def test_arguments_of_other_types_are_refused() -> None:
    with pytest.raises(poptorch.Error, match="Invalid type: 'options' is of type"):
        poptorch.inferenceModel(seeded(), {"a": 1})  # type: ignore[arg-type]
    with pytest.raises(poptorch.Error, match="Invalid type: 'model' is of type"):
        poptorch.inferenceModel(lambda x: x)  # type: ignore[arg-type]


def test_options_are_frozen() -> None:
    settings = options()
    poptorch.inferenceModel(Identity(), settings)

    with pytest.raises(AttributeError, match="Can't modify frozen Options"):
        settings.deviceIterations(2)


def test_the_module_keeps_the_running_statistics_of_the_first_replica() -> None:
    model = seeded(nn.BatchNorm1d(8))
    alone = copy.deepcopy(model)
    x, target = batch(12)
    executor = poptorch.trainingModel(model, options(replicas=3), sgd(model))
    other = poptorch.trainingModel(alone, options(), sgd(alone))

    executor(x, target)
    other(x[:4], target[:4])

    for name, value in model.named_buffers():
        assert value.equal(dict(alone.named_buffers())[name]), name
    assert model.layers[1].num_batches_tracked == 1


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.calls += x.sum()
        loss = poptorch.identity_loss(self.weight * x, reduction="sum")
        return self.calls.clone(), loss


def test_replicas_cannot_change_a_buffer_that_they_have_in_common() -> None:
    model = Counter()
    executor = poptorch.trainingModel(model, options(replicas=2))

    with pytest.raises(poptorch.Error, match="does not support broadcasting buffers"):
        executor(torch.ones(2))

    assert model.calls == 0


def test_replicas_can_have_buffers_of_their_own() -> None:
    model = Counter()
    settings = options(replicas=2)
    settings.broadcastBuffers(False)
    executor = poptorch.trainingModel(model, settings)

    executor(torch.tensor([1.0, 10.0]))
    counts, _ = executor(torch.tensor([1.0, 10.0]))

    assert counts.tolist() == [2, 20]
    assert model.calls == 2


@pytest.mark.parametrize(
    ("removes", "message"),
    [
        (True, "Buffer mean is removed from the model when calling the forward"),
        (False, r"Consider using self\.mean\.copy_\(src\) to copy data"),
    ],
)
def test_forward_keeps_the_buffers_that_the_module_has(
    removes: bool, message: str
) -> None:
    class Rebinds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if removes:
                del self.mean
            else:
                self.mean = x.mean()
            return x

    model = Rebinds()

    with pytest.raises(poptorch.Error, match=message):
        poptorch.inferenceModel(model, options())(torch.ones(2))

    assert model.mean == 0


def test_dropout_follows_from_the_seed_and_leaves_the_hosts_numbers_alone() -> None:
    def outputs(seed: int) -> torch.Tensor:
        settings = options(replicas=2, iterations=2)
        settings.randomSeed(seed)
        settings.outputMode(poptorch.OutputMode.All)
        executor = poptorch.inferenceModel(nn.Dropout(0.5), settings)
        before = torch.get_rng_state()
        found = torch.cat([executor(torch.ones(64)), executor(torch.ones(64))])
        assert torch.get_rng_state().equal(before)
        return found

    first = outputs(3)

    assert first.equal(outputs(3))
    assert not first.equal(outputs(4))
    # Every replica and every iteration has numbers of its own.
    assert len({tuple(part.tolist()) for part in first.chunk(8)}) == 8


def test_random_state_can_be_saved_and_set_back() -> None:
    executor = poptorch.inferenceModel(nn.Dropout(0.5), options())
    executor(torch.ones(32))
    state = executor.rng_state
    expected = executor(torch.ones(32))

    executor.rng_state = state

    assert executor(torch.ones(32)).equal(expected)
    with pytest.raises(poptorch.Error, match="must be a list of two whole numbers"):
        executor.rng_state = [1]


def test_a_torch_loss_that_is_returned_needs_no_identity_loss() -> None:
    class Plain(Classifier):
        def forward(
            self, x: torch.Tensor, target: torch.Tensor
        ) -> tuple[torch.Tensor, torch.Tensor]:
            scores = self.layers(x)
            return scores, functional.cross_entropy(scores, target)

    plain = Plain()
    marked = seeded()
    marked.load_state_dict(plain.state_dict())
    for model in (plain, marked):
        poptorch.trainingModel(model, options(2), sgd(model))(*batch(8))

    for mine, other in zip(plain.parameters(), marked.parameters(), strict=True):
        assert mine.equal(other)


class Losses(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.kind = kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * self.weight
        if self.kind == "changed":
            return functional.mse_loss(y, x * 0) + 1
        if self.kind == "two":
            poptorch.identity_loss(y, reduction="sum")
            return poptorch.identity_loss(x * self.weight, reduction="mean")
        if self.kind == "hidden":
            functional.mse_loss(y, x * 0)
        return y


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("none", "The model has no loss to train with"),
        ("changed", "changes the result of a torch loss function"),
        ("two", "Multiple independent losses found in graph"),
    ],
)
def test_a_model_without_one_final_loss_is_refused(kind: str, message: str) -> None:
    executor = poptorch.trainingModel(Losses(kind), options())

    with pytest.raises(poptorch.Error, match=message):
        executor(torch.ones(1, 2))


def test_a_torch_loss_need_not_be_returned() -> None:
    model = Losses("hidden")
    executor = poptorch.trainingModel(model, options(), sgd(model))

    executor(torch.ones(1, 2))

    # The gradient of the mean of squares of two ones is one for each.
    torch.testing.assert_close(model.weight.detach(), torch.tensor([0.9, 0.9]))


def test_compiling_runs_nothing() -> None:
    model = seeded(nn.BatchNorm1d(8))
    before = copy.deepcopy(model.state_dict())
    executor = poptorch.trainingModel(model, options(), sgd(model))

    executor.compile(*batch(4))

    assert executor.isCompiled()
    for name, value in model.state_dict().items():
        assert value.equal(before[name])


def test_a_model_for_no_device_is_only_compiled() -> None:
    settings = options()
    settings.useOfflineIpuTarget()
    executor = poptorch.inferenceModel(Identity(), settings)
    executor.compile(torch.ones(1))

    with pytest.raises(AssertionError, match="on an offline device"):
        executor(torch.ones(1))


def test_devices_are_attached_and_left() -> None:
    executor = poptorch.inferenceModel(Identity(), options())
    with pytest.raises(poptorch.Error, match="has not been compiled or has been des"):
        executor.detachFromDevice()
    executor(torch.ones(1))
    assert executor.isAttachedToDevice()

    with pytest.raises(poptorch.Error, match="Device is already attached"):
        executor.attachToDevice()
    executor.detachFromDevice()
    with pytest.raises(poptorch.Error, match="Device is not attached"):
        executor.detachFromDevice()
    executor.attachToDevice()

    assert executor.isAttachedToDevice()


def test_latencies_are_measured_for_each_device_iteration() -> None:
    settings = options(iterations=3)
    settings.logCycleCount(True)
    executor = poptorch.inferenceModel(Identity(), settings)
    with pytest.raises(poptorch.Error, match="has not run yet"):
        executor.getLatency()

    executor(torch.ones(3))

    least, most, average = executor.getLatency()
    assert 0 < least <= average <= most
    assert [len(times[0]) for times in executor.getPerfCounters().values()] == [3] * 4
    assert executor.cycleCount() >= 3e9 * least


def test_latencies_have_the_parts_of_all_micro_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]

    class Slow(nn.Module):
        def forward(self, x: Any) -> Any:
            clock[0] += 100
            return x

    def slow(name: str, function: str, seconds: float) -> None:
        owner = getattr(model_state, name)
        original = getattr(owner, function)

        def slowed(*args: Any) -> Any:
            clock[0] += seconds
            return original(*args)

        monkeypatch.setattr(owner, function, slowed)

    executor = poptorch.inferenceModel(Slow(), options(replicas=2, iterations=3))
    executor(torch.ones(6))
    for module in (model_state, timing):
        monkeypatch.setattr(module, "perf_counter", lambda: clock[0])
    slow("Inputs", "micro_batch", 1)
    slow("Outputs", "add", 10)

    executor(torch.ones(6))

    assert executor.getHostIpuLatency() == (2, 2, 2)
    assert executor.getComputeLatency() == (200, 200, 200)
    assert executor.getIpuHostLatency() == (20, 20, 20)
    assert executor.getLatency() == (222, 222, 222)


def test_the_model_of_an_inference_model_is_a_copy_with_the_same_weights() -> None:
    model = seeded(nn.Dropout())
    trained = poptorch.trainingModel(model, options(), sgd(model))
    executor = poptorch.inferenceModel(trained, options())

    executor.model.training = False

    assert trained.model is model
    assert executor.model is not model
    assert model.training
    for weight, own in zip(
        executor.model.parameters(), model.parameters(), strict=True
    ):
        assert weight is own


def test_state_dicts_are_written_through_to_all_replicas() -> None:
    model = seeded(nn.BatchNorm1d(8))
    other = seeded(nn.BatchNorm1d(8), seed=5)
    executor = poptorch.trainingModel(model, options(replicas=2), sgd(model))
    executor(*batch(8))

    executor.load_state_dict(other.state_dict())

    assert model.layers[0].weight.equal(other.layers[0].weight)
    assert len(executor._state.replicas.buffers._others) == 0


@pytest.mark.parametrize("training", [False, True])
def test_a_saved_model_goes_on_where_it_was(training: bool, tmp_path: Path) -> None:
    model = seeded(nn.BatchNorm1d(8), nn.Dropout())
    x, target = batch(8)
    file = str(tmp_path / "saved" / "model")
    if training:
        executor = poptorch.trainingModel(model, options(2), sgd(model, momentum=0.9))
    else:
        executor = poptorch.inferenceModel(model, options(2))
    executor(x, target)
    executor.save(file)

    loaded = poptorch.load(file)

    assert loaded.isCompiled()
    for _ in range(2):
        mine, other = executor(x, target), loaded(x, target)
        assert mine[1].equal(other[1])


def test_an_executable_is_loaded_into_a_model_like_it(tmp_path: Path) -> None:
    file = str(tmp_path)
    executor = poptorch.inferenceModel(seeded(), options())
    executor.compileAndExport(file, *batch(2), export_model=False)
    other = poptorch.inferenceModel(seeded(seed=8), options())

    other.loadExecutable(file)

    assert other(*batch(2))[0].equal(executor(*batch(2))[0])
    with pytest.raises(poptorch.Error, match="export_model=False, so it holds no"):
        poptorch.load(file)
    with pytest.raises(poptorch.Error, match="There is no file"):
        poptorch.load(f"{file}/none")


def test_a_file_of_an_earlier_format_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "model.poptorch"
    torch.save({"format": "popdist poptorch 3"}, file)

    with pytest.raises(poptorch.Error, match="contains no model of this version"):
        poptorch.load(str(file))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"cpoptorch\nKind\n.", "AttributeError: Can't get attribute 'Kind' on "),
        (b"cno_such_module\nKind\n.", "ModuleNotFoundError: No module named 'no_such"),
        (b"", "EOFError: Ran out of input"),
        (b"no pickle", "UnpicklingError: "),
        (b"PK\x03\x04", "RuntimeError: PytorchStreamReader failed"),
    ],
    ids=["renamed class", "missing module", "empty", "text", "incomplete zip"],
)
def test_a_file_that_cannot_be_unpickled_is_an_error(
    content: bytes, reason: str, tmp_path: Path
) -> None:
    file = tmp_path / "model.poptorch"
    file.write_bytes(content)

    with pytest.raises(poptorch.Error, match=rf"cannot be unpickled \({reason}"):
        poptorch.load(str(file))


def test_attention_takes_a_half_mask() -> None:
    class Attention(nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return functional.scaled_dot_product_attention(x, x, x, attn_mask=mask)

    executor = poptorch.inferenceModel(Attention(), options())
    x, mask = torch.rand(2, 1, 4, 4).half(), torch.rand(2, 1, 4, 4).half()
    expected = Attention()(x.float(), mask.float())

    torch.testing.assert_close(executor(x, mask), expected.half())


def test_a_half_model_trains_like_one_in_float32() -> None:
    model = seeded(nn.LayerNorm(8))
    wide = copy.deepcopy(model)
    x, target = batch(8)
    half = poptorch.trainingModel(model.half(), options(2, 2), sgd(model, momentum=0.9))
    full = poptorch.trainingModel(wide, options(2, 2), sgd(wide, momentum=0.9))

    for _ in range(5):
        scores, _ = half(x.half(), target)
        full(x, target)

    assert scores.dtype is torch.float16
    for mine, other in zip(model.parameters(), wide.parameters(), strict=True):
        assert mine.dtype is torch.float16
        torch.testing.assert_close(mine.float(), other, rtol=0.02, atol=0.003)


def test_float64_inputs_become_float32() -> None:
    executor = poptorch.inferenceModel(seeded(), options())
    x, target = batch(2)

    assert executor(x.double(), target)[0].dtype is torch.float32


def test_an_error_in_forward_leaves_the_model_as_it_was() -> None:
    class Fails(Classifier):
        fails = False

        def forward(self, x: torch.Tensor, target: torch.Tensor) -> Any:
            if self.fails:
                raise ValueError("no")
            return super().forward(x, target)

    model = Fails(nn.BatchNorm1d(8))
    executor = poptorch.trainingModel(model, options(replicas=2), sgd(model))
    executor(*batch(4))
    held = dict(model.named_buffers())
    before = torch.get_rng_state()
    Fails.fails = True

    with pytest.raises(ValueError, match="no"):
        executor(*batch(4))

    assert torch.get_rng_state().equal(before)
    assert all(value is held[name] for name, value in model.named_buffers())
    assert not poptorch.isRunningOnIpu()
    Fails.fails = False
    executor(*batch(4))


def test_the_model_of_a_training_executor_is_the_users_module() -> None:
    model = seeded()
    executor = poptorch.trainingModel(model, options(), sgd(model))

    executor.model.epoch = 3

    assert executor.model is model
    assert model.epoch == 3


def anchoring(**arguments: Any) -> poptorch.Options:
    settings = options(**arguments)
    settings.anchorTensor("gradient", "Gradient___fc.weight")
    settings.anchorTensor("bias", "UpdatedVar___fc.bias")
    return settings


class Line(nn.Module):
    """The mean of squares of a linear function of one number."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(1, 1)
        with torch.no_grad():
            self.fc.weight.fill_(1)
            self.fc.bias.fill_(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return poptorch.identity_loss((self.fc(x) ** 2).mean(), reduction="none")


def test_gradients_and_updated_weights_are_kept_for_each_call() -> None:
    model = Line()
    executor = poptorch.trainingModel(model, anchoring(replicas=2), sgd(model))

    executor(torch.tensor([[1.0], [3.0]]))

    # Of w x + b at w = 1, b = 0: the means of 2 x * x and of 2 x over the replicas.
    assert executor.getAnchoredTensor("gradient").tolist() == [[10.0]]
    assert executor.getAnchoredTensor("bias").tolist() == pytest.approx([-0.4])
    executor(torch.zeros(2, 1))
    assert executor.getAnchoredTensor("gradient").tolist() == [[0.0]]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        pytest.param((), [4.0], id="final"),
        pytest.param((poptorch.OutputMode.All,), [[2.0], [4.0]], id="all"),
        pytest.param((poptorch.OutputMode.Sum,), [6.0], id="sum"),
        pytest.param((poptorch.OutputMode.EveryN, 2), [4.0], id="every-2"),
    ],
)
def test_anchored_tensors_have_an_output_mode_of_their_own(
    mode: tuple[Any, ...], expected: list[Any]
) -> None:
    model = Line()
    settings = options(iterations=2)
    settings.anchorTensor("gradient", "Gradient___fc.bias", *mode)
    still = torch.optim.SGD(model.parameters(), lr=0.0)
    executor = poptorch.trainingModel(model, settings, still)

    executor(torch.tensor([[1.0], [2.0]]))

    assert executor.getAnchoredTensor("gradient").tolist() == expected


def test_anchors_may_name_the_module_that_poptorch_wraps_models_in() -> None:
    model = Line()
    settings = options()
    settings.anchorTensor("gradient", "Gradient___model.fc.bias")
    settings.anchorTensor("weight", "UpdatedVar___model.fc.bias")
    executor = poptorch.trainingModel(model, settings, sgd(model))

    executor(torch.ones(1, 1))

    assert executor.getAnchoredTensor("gradient").tolist() == [2.0]
    assert executor.getAnchoredTensor("weight").equal(model.fc.bias)


def test_the_names_of_what_can_be_anchored_are_listed() -> None:
    executor = poptorch.trainingModel(Line(), options())
    with pytest.raises(AssertionError, match="must be compiled before"):
        executor.getTensorNames()
    executor.compile(torch.zeros(1, 1))

    assert executor.getTensorNames() == [
        "Gradient___fc.weight",
        "Gradient___fc.bias",
        "UpdatedVar___fc.weight",
        "UpdatedVar___fc.bias",
    ]


def test_other_tensors_of_a_graph_are_refused_in_words() -> None:
    settings = options()
    settings.anchorTensor("inner", "fc/Gemm:0")
    executor = poptorch.trainingModel(Line(), settings)
    executor(torch.zeros(1, 1))

    with pytest.raises(poptorch.Error, match="'fc/Gemm:0', anchored as 'inner', is no"):
        executor.getAnchoredTensor("inner")
    with pytest.raises(AssertionError, match="No tensor is anchored as 'x', but"):
        executor.getAnchoredTensor("x")


def test_what_was_compiled_for_no_device_runs_when_it_is_loaded(
    tmp_path: Path,
) -> None:
    file = str(tmp_path / "model.poptorch")
    executor = poptorch.inferenceModel(Identity(), options().useOfflineIpuTarget())
    executor.compileAndExport(file, torch.zeros(2))

    assert poptorch.load(file)(torch.ones(2)).tolist() == [1.0, 1.0]


class LossWhenTraining(nn.Module):
    """Returns the loss only in training mode, as PopTorch's guide does it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 2)
        self.dropout = nn.Dropout(0.5)
        self.loss = nn.CrossEntropyLoss()

    def forward(self, x: torch.Tensor, target: torch.Tensor | None = None) -> Any:
        y = self.dropout(self.fc(x))
        return (y, self.loss(y, target)) if self.training else y


def test_a_model_trains_as_it_was_when_the_executor_was_made() -> None:
    model = LossWhenTraining()
    training = poptorch.trainingModel(model, options(), sgd(model))
    model.eval()
    validation = poptorch.inferenceModel(model, options())
    x = torch.ones(2, 8)

    _, loss = training(x, torch.tensor([0, 1]))

    assert loss.shape == ()
    assert torch.allclose(validation(x), model(x))


def test_a_compiled_model_stays_in_the_mode_that_it_was_compiled_in() -> None:
    model = LossWhenTraining()
    training = poptorch.trainingModel(model, options(), sgd(model))
    x, target = torch.ones(64, 8), torch.zeros(64, dtype=torch.long)
    training(x, target)
    model.eval()

    output, _ = training(x, target)

    assert (output == 0).any(), "no dropout"
    assert not any(one.training for one in model.modules())


def test_inputs_without_elements_are_refused() -> None:
    executor = poptorch.inferenceModel(Identity(), options())

    with pytest.raises(poptorch.Error, match=r"\(Got shape \[0, 3\]\)"):
        executor(torch.ones(0, 3))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("label", [2, -1])
def test_a_label_that_is_no_class_is_an_error_that_says_so(
    compiled: bool, label: int
) -> None:
    model = LossWhenTraining()
    training = poptorch.trainingModel(model, options(), sgd(model))
    if compiled:
        training(torch.ones(2, 8), torch.tensor([0, 1]))

    with pytest.raises(
        poptorch.Error,
        match=rf"Target {label} is out of bounds\. No class of the loss has this label",
    ):
        training(torch.ones(2, 8), torch.tensor([0, label]))


def test_compiling_attaches_to_the_device() -> None:
    executor = poptorch.inferenceModel(Identity(), options())
    offline = poptorch.inferenceModel(Identity(), options().useOfflineIpuTarget())

    for each in (executor, offline):
        each.compile(torch.ones(2))

    assert executor.isAttachedToDevice()
    assert not offline.isAttachedToDevice()
    executor.detachFromDevice()
