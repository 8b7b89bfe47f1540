"""Replicas, gradients and updates of a TrainingSession."""

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from popart_models import (
    ALL,
    RATE,
    TARGETS,
    device,
    one_weight,
    options,
    share_of,
    weights_of,
)

import popart
import popdist
import popdist.popart
from tests.popdist.engine.members import error_of
from tests.popdist.sdk.torch_instances import results

MEAN = {"accumulationAndReplicationReductionType": popart.ReductionType.Mean}
SCHEDULES = list(popart.MeanReductionStrategy)


@pytest.mark.parametrize("replicas", [1, 2, 3, 4, 6, 12])
@pytest.mark.parametrize("strategy", SCHEDULES)
def test_a_mean_over_replicas_and_accumulation_is_the_same_in_every_layout(
    replicas: int, strategy: popart.MeanReductionStrategy
) -> None:
    made = options(
        replicas,
        12 // replicas,
        meanAccumulationAndReplicationReductionStrategy=strategy,
        **MEAN,
    )

    weight = one_weight(made, share_of(replicas, 0, replicas))

    assert weight == pytest.approx(0.3111111, abs=1e-6)


def test_a_sum_is_the_default_and_needs_a_smaller_rate() -> None:
    weight = one_weight(options(3, 4), share_of(3, 0, 3), popart.ConstSGD(RATE / 12))

    assert weight == pytest.approx(0.3111111, abs=1e-6)


def trained_instance(accumulation: int, first: int | None = None) -> float:
    """Return the weight of this instance of a job.

    Args:
        accumulation: Of all micro-batches of an update, how many each replica runs.
        first: The number of the first local replica; None for what poprun says.
    """
    made = options(1, accumulation, **MEAN)
    popdist.popart.configureSessionOptions(made)
    if first is not None:
        made.globalReplicaOffset = first
    total = popdist.getNumTotalReplicas()
    offset, local = popdist.getReplicaIndexOffset(), popdist.getNumLocalReplicas()
    return one_weight(made, share_of(total, offset, local))


@pytest.mark.parametrize(
    "rows", [(1, 1), (2, 2), (1, 2), (3, 3), (1, 1, 1), (1, 3), (4, 4, 4)]
)
def test_instances_get_the_weight_that_one_gets_to_the_bit(rows: tuple[int]) -> None:
    total = sum(rows)
    alone = one_weight(options(total, 12 // total, **MEAN), share_of(total, 0, total))

    weights = results(rows, lambda index: trained_instance(12 // total))

    assert weights == [alone] * len(rows)
    assert alone == pytest.approx(0.3111111, abs=1e-6)


def test_instances_whose_options_differ_are_told_so() -> None:
    errors = results(
        (1, 1), lambda index: error_of(lambda: trained_instance(6 + index))[1]
    )

    message = (
        "SessionOptions.accumulationFactor must be the same on all instances, but is "
        "[6, 7], from instance 0 to 1."
    )
    assert errors == [message] * 2


def test_options_of_other_replicas_than_those_of_the_job_are_refused() -> None:
    errors = results((1, 1), lambda index: error_of(lambda: trained_instance(6, 1))[1])

    assert errors[0].startswith(
        "The session options say that the replicas of this instance begin at 1 of 2, "
        "but they begin at 0 of 2 in its job. Start the program with poprun"
    )


def test_distributed_options_without_other_instances_are_refused() -> None:
    made = options(enableDistributedReplicatedGraphs=True, globalReplicationFactor=4)

    # In a fork: a process that has joined a group has no forks that can.
    ((_, error),) = results(
        (1,), lambda index: error_of(lambda: one_weight(made, TARGETS))
    )

    assert "begin at 0 of 4, but they begin at 0 of 1 in its job." in error


FEATURES, HIDDEN, CLASSES, ROWS = 6, 5, 3, 4


def network(seed: int = 1) -> tuple[popart.Builder, dict[str, str]]:
    """Return a network, and the names of its inputs, outputs and weights."""
    draw = np.random.default_rng(seed).normal
    builder, names = popart.Builder(), {}
    x = names["x"] = builder.addInputTensor("FLOAT", [ROWS, FEATURES])
    label = names["label"] = builder.addInputTensor("INT32", [ROWS])
    for name, shape in (
        ("w1", (FEATURES, HIDDEN)),
        ("b1", (HIDDEN,)),
        ("w2", (HIDDEN, CLASSES)),
        ("b2", (CLASSES,)),
    ):
        initial = draw(size=shape).astype(np.float32)
        names[name] = builder.addInitializedInputTensor(initial, name)
    onnx = builder.aiOnnx
    hidden = onnx.relu([onnx.gemm([x, "w1", "b1"])])
    scores = names["scores"] = onnx.gemm([hidden, "w2", "b2"])
    names["loss"] = builder.aiGraphcore.nllloss([onnx.softmax([scores]), label])
    return builder, names


WEIGHTS = ("w1", "b1", "w2", "b2")


def data(batches: int, seed: int = 3) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return {
        "x": random.normal(size=(batches, ROWS, FEATURES)).astype(np.float32),
        "label": random.integers(0, CLASSES, (batches, ROWS)).astype(np.int32),
    }


def trained(
    optimizer: popart.Optimizer,
    micro_batches: int = 4,
    made: Any = None,
    mine: slice = slice(None),
) -> dict[str, Any]:
    """Return the weights of the network after four updates.

    Args:
        optimizer: How they are updated.
        micro_batches: How many there are, of all replicas of all instances.
        made: The session options.
        mine: Which of all replicas are those of this instance.
    """
    builder, names = network()
    made = made or options()
    session = popart.TrainingSession(
        *(builder.getModelProto(), popart.DataFlow(4, []), names["loss"]),
        *(optimizer, device(made.replicatedGraphCount)),
        userOptions=made,
    )
    session.prepareDevice()
    session.weightsFromHost()
    steps = 4 * made.accumulationFactor
    given = {
        names[name]: np.ascontiguousarray(
            array.reshape(steps, micro_batches // steps, *array.shape[1:])[:, mine]
        )
        for name, array in data(micro_batches).items()
    }
    session.run(popart.PyStepIO(given, session.initAnchorArrays()))
    return weights_of(session, *WEIGHTS)


def trained_by_torch(
    optimizer: Callable[[list[torch.Tensor]], torch.optim.Optimizer],
    clip: float | None = None,
    micro_batches: int = 1,
) -> dict[str, Any]:
    """Return the weights of the network after four updates.

    Args:
        optimizer: Makes the optimizer for some weights.
        clip: The largest norm of the gradients.
        micro_batches: Of how many micro-batches a batch consists.
    """
    draw = np.random.default_rng(1).normal
    shapes = [(FEATURES, HIDDEN), (HIDDEN,), (HIDDEN, CLASSES), (CLASSES,)]
    weights = [
        torch.tensor(draw(size=shape).astype(np.float32), requires_grad=True)
        for shape in shapes
    ]
    made = optimizer(weights)
    given = {
        name: array.reshape(4, -1, *array.shape[2:])
        for name, array in data(4 * micro_batches).items()
    }
    for x, label in zip(given["x"], given["label"], strict=True):
        hidden = torch.relu(torch.from_numpy(x) @ weights[0] + weights[1])
        scores = hidden @ weights[2] + weights[3]
        loss = torch.nn.functional.cross_entropy(scores, torch.tensor(label).long())
        made.zero_grad()
        loss.backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(weights, clip)
        made.step()
    return dict(zip(WEIGHTS, (w.detach().numpy() for w in weights), strict=True))


def assert_alike(found: dict[str, Any], expected: dict[str, Any]) -> None:
    for name in WEIGHTS:
        np.testing.assert_allclose(found[name], expected[name], rtol=2e-5, atol=2e-6)


def values(**more: float) -> dict[str, tuple[float, bool]]:
    return {name: (value, False) for name, value in more.items()}


LIKE_TORCH: dict[str, tuple[Any, Callable[..., torch.optim.Optimizer]]] = {
    "sgd": (popart.ConstSGD(0.1), lambda p: torch.optim.SGD(p, 0.1)),
    "sgd with decay and loss scaling": (
        popart.ConstSGD(0.1, 0.2, 64.0),
        lambda p: torch.optim.SGD(p, 0.1, weight_decay=0.2),
    ),
    "momentum": (
        popart.SGD(
            values(defaultLearningRate=0.1, defaultMomentum=0.9, defaultWeightDecay=0.1)
        ),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.1),
    ),
    "scaled nesterov": (
        popart.SGD(
            {
                **values(defaultLearningRate=0.1, defaultMomentum=0.9),
                **values(nesterov=1.0, defaultVelocityScaling=8.0, lossScaling=4.0),
            },
            accumulatorAndMomentum=popart.SGDAccumulatorAndMomentum.Separate,
        ),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
    ),
    "adamw": (
        popart.Adam(
            values(defaultLearningRate=0.1, defaultWeightDecay=0.2, defaultEps=1e-3)
        ),
        lambda p: torch.optim.AdamW(p, 0.1, weight_decay=0.2, eps=1e-3),
    ),
    "adam": (
        popart.Adam(
            values(defaultLearningRate=0.1, defaultWeightDecay=0.2, defaultEps=1e-3),
            weight_decay_mode=popart.WeightDecayMode.L2Regularization,
        ),
        lambda p: torch.optim.Adam(p, 0.1, weight_decay=0.2, eps=1e-3),
    ),
    "adamax": (
        popart.Adam(
            values(defaultLearningRate=0.1, defaultEps=1e-6), popart.AdamMode.AdaMax
        ),
        lambda p: torch.optim.Adamax(p, 0.1, eps=1e-6),
    ),
    "rmsprop": (
        popart.Adaptive(
            values(defaultLearningRate=0.1, defaultMomentum=0.5, defaultEps=1e-3)
        ),
        lambda p: torch.optim.RMSprop(p, 0.1, momentum=0.5, eps=1e-3),
    ),
    "centred rmsprop": (
        popart.Adaptive(
            values(defaultLearningRate=0.1, defaultAlpha=0.9, defaultEps=1e-2),
            popart.AdaptiveMode.CenteredRMSProp,
        ),
        lambda p: torch.optim.RMSprop(p, 0.1, 0.9, 1e-2, centered=True),
    ),
    "adagrad": (
        popart.Adaptive(
            values(defaultLearningRate=0.1, defaultEps=1e-3),
            popart.AdaptiveMode.AdaGrad,
        ),
        lambda p: torch.optim.Adagrad(p, 0.1, eps=1e-3),
    ),
    "adadelta": (
        popart.Adaptive(
            values(defaultLearningRate=0.1, defaultAlpha=0.9, defaultEps=1e-4),
            popart.AdaptiveMode.AdaDelta,
        ),
        lambda p: torch.optim.Adadelta(p, 0.1, 0.9, 1e-4),
    ),
}


@pytest.mark.parametrize("name", LIKE_TORCH)
def test_an_optimizer_updates_weights_as_that_of_torch(name: str) -> None:
    ours, theirs = LIKE_TORCH[name]

    assert_alike(trained(ours), trained_by_torch(theirs))


@pytest.mark.parametrize(("replicas", "accumulation"), [(2, 1), (1, 3), (2, 3)])
@pytest.mark.parametrize("name", LIKE_TORCH)
def test_a_batch_of_replicas_and_accumulation_is_one_batch_of_torch(
    name: str, replicas: int, accumulation: int
) -> None:
    ours, theirs = LIKE_TORCH[name]
    count = replicas * accumulation

    found = trained(ours, 4 * count, options(replicas, accumulation, **MEAN))

    assert_alike(found, trained_by_torch(theirs, micro_batches=count))


@pytest.mark.parametrize("rows", [(1, 1), (2, 2), (1, 2)])
def test_a_batch_of_instances_is_one_batch_of_torch(rows: tuple[int, ...]) -> None:
    total, accumulation = sum(rows), 3

    def train(index: int) -> dict[str, dict[str, Any]]:
        first = sum(rows[:index])
        mine = slice(first, first + rows[index])
        found = {}
        for name, (optimizer, _) in LIKE_TORCH.items():
            made = options(1, accumulation, **MEAN)
            popdist.popart.configureSessionOptions(made)
            found[name] = trained(optimizer, 4 * accumulation * total, made, mine=mine)
        return found

    for found in results(rows, train):
        for name, (_, theirs) in LIKE_TORCH.items():
            expected = trained_by_torch(theirs, micro_batches=accumulation * total)
            assert_alike(found[name], expected)


def test_gradients_are_clipped_by_their_norm() -> None:
    clip = [popart.ClipNormSettings.clipAllWeights(0.3)]

    found = trained(popart.ConstSGD(0.1, clip_norm_settings=clip))

    expected = trained_by_torch(lambda p: torch.optim.SGD(p, 0.1), clip=0.3)
    assert_alike(found, expected)


def test_only_the_named_weights_are_clipped_together() -> None:
    clip = [popart.ClipNormSettings.clipWeights(["w1", "b1"], 1e-9)]

    found = trained(popart.ConstSGD(0.1, clip_norm_settings=clip))

    untouched = trained(popart.ConstSGD(0.0))
    np.testing.assert_allclose(found["w1"], untouched["w1"], atol=1e-8)
    assert not np.allclose(found["w2"], untouched["w2"])


def test_a_weight_can_have_values_of_its_own() -> None:
    optimizer = popart.SGD({"defaultLearningRate": (0.1, False)})
    optimizer.insertSpecific("w1", {"learningRate": (0.0, False)})

    found = trained(optimizer)

    untouched = trained(popart.ConstSGD(0.0))
    assert np.array_equal(found["w1"], untouched["w1"])
    assert not np.allclose(found["b1"], untouched["b1"])


@pytest.mark.parametrize("mode", [popart.AdamMode.Lamb, popart.AdamMode.LambNoBias])
def test_lamb_scales_a_change_to_the_norm_of_its_weight(mode: popart.AdamMode) -> None:
    weight, gradient = torch.tensor([3.0, 4.0]), torch.tensor([0.5, -1.0])
    optimizer = popart.Adam(
        values(defaultLearningRate=0.1, defaultEps=0.0, defaultMaxWeightNorm=2.0), mode
    )

    new = optimizer.update("w", weight, gradient, {})

    # Without its norm, the change is that of signs in the first step, or a tenth of
    # them by the square root of a thousandth; the norm of the weight is cut to 2.
    torch.testing.assert_close(
        weight - new, 0.1 * 2.0 * torch.tensor([1.0, -1.0]) / 2**0.5
    )


def test_rmsprop_of_tensorflow_has_the_learning_rate_in_its_momentum() -> None:
    optimizer = popart.Adaptive(
        values(
            defaultLearningRate=0.1,
            defaultAlpha=0.9,
            defaultMomentum=0.5,
            defaultEps=0.01,
        ),
        rmsprop_tf_variant=True,
    )
    weight, state = torch.tensor([1.0]), {}

    first = optimizer.update("w", weight, torch.tensor([2.0]), state)
    second = optimizer.update("w", first, torch.tensor([2.0]), state)

    # The averages of squares are 0.4 and 0.76.
    changes = [0.1 * 2 / 0.41**0.5, 0.1 * 2 / 0.77**0.5]
    assert first.item() == pytest.approx(1 - changes[0])
    assert second.item() == pytest.approx(1 - 1.5 * changes[0] - changes[1])


def test_adam_without_correction_of_the_bias() -> None:
    optimizer = popart.Adam(
        values(defaultLearningRate=0.1, defaultEps=0.0), popart.AdamMode.AdamNoBias
    )

    new = optimizer.update("w", torch.tensor([1.0]), torch.tensor([2.0]), {})

    assert new.item() == pytest.approx(1 - 0.1 * 0.2 / 0.004**0.5)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"learningRate": (0.1, True)}, "SGD has no value learningRate. Choose among"),
        ({"defaultBeta1": (0.1, True)}, "SGD has no value defaultBeta1. Choose among"),
        ({"defaultMomentum": 0.9}, "must be a tuple of a number and whether it never"),
    ],
)
def test_values_that_an_optimizer_does_not_have_are_refused(
    values: dict[str, Any], message: str
) -> None:
    with pytest.raises(popart.popart_exception, match=message):
        popart.SGD(values)


def session_of(
    optimizer: popart.Optimizer, made: Any = None, batches: int = 1
) -> tuple[Any, dict[str, str], dict[str, Any]]:
    builder, names = network()
    session = popart.TrainingSession(
        builder.getModelProto(),
        popart.DataFlow(batches, [names["loss"]]),
        names["loss"],
        optimizer,
        device(),
        userOptions=made,
    )
    session.prepareDevice()
    session.weightsFromHost()
    given = {names[name]: array for name, array in data(batches).items()}
    return session, names, given


def test_an_optimizer_can_change_what_is_not_constant() -> None:
    session, _, given = session_of(popart.SGD({"defaultLearningRate": (0.1, False)}))
    session.updateOptimizerFromHost(popart.SGD({"defaultLearningRate": (0.0, False)}))
    before = weights_of(session, *WEIGHTS)

    session.run(popart.PyStepIO(given, session.initAnchorArrays()))

    assert_alike(weights_of(session, *WEIGHTS), before)


def test_an_optimizer_cannot_change_what_is_constant() -> None:
    session, _, _ = session_of(popart.ConstSGD(0.1))

    with pytest.raises(
        popart.popart_exception,
        match=r"The optimizer's learningRate is constant and cannot change from 0.1 to",
    ):
        session.updateOptimizerFromHost(popart.ConstSGD(0.2))
    with pytest.raises(popart.popart_exception, match=r"with an optimizer of the cla"):
        session.updateOptimizerFromHost(popart.Adam({}))


def test_an_optimizer_cannot_change_what_is_constant_for_one_weight() -> None:
    def sgd(rate: float | None) -> popart.SGD:
        optimizer = popart.SGD({"defaultLearningRate": (0.1, False)})
        if rate is not None:
            optimizer.insertSpecific("w1", {"learningRate": (rate, True)})
        return optimizer

    session, _, _ = session_of(sgd(0.5))

    session.updateOptimizerFromHost(sgd(0.5))
    for rate, now in ((0.25, 0.25), (None, 0.1)):
        with pytest.raises(
            popart.popart_exception,
            match=rf"learningRate of the weight w1 is constant and cannot change from "
            rf"0.5 to {now}\. ",
        ):
            session.updateOptimizerFromHost(sgd(rate))


def sgd_with(kind: popart.SGDAccumulatorAndMomentum, momentum: float) -> popart.SGD:
    return popart.SGD(values(defaultMomentum=momentum), accumulatorAndMomentum=kind)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (
            sgd_with(popart.SGDAccumulatorAndMomentum.Combined, 0.9),
            sgd_with(popart.SGDAccumulatorAndMomentum.Separate, 0.9),
            "accumulatorAndMomentum cannot change from Combined to Separate: its",
        ),
        (
            popart.Adam({}),
            popart.Adam({}, popart.AdamMode.AdaMax),
            "The optimizer's mode cannot change from Adam to AdaMax: its tensors",
        ),
        (
            popart.Adam({}),
            popart.Adam({}, weight_decay_mode=popart.WeightDecayMode.L2Regularization),
            "weight_decay_mode cannot change from Decay to L2Regularization: its",
        ),
        (
            popart.Adaptive({}),
            popart.Adaptive({}, popart.AdaptiveMode.AdaDelta),
            "The optimizer's mode cannot change from RMSProp to AdaDelta: its",
        ),
        (
            popart.Adaptive({}),
            popart.Adaptive({}, rmsprop_tf_variant=True),
            "rmsprop_tf_variant cannot change from False to True: its",
        ),
        (
            popart.SGD({}, [popart.ClipNormSettings.clipAllWeights(1.0)]),
            popart.SGD({}, [popart.ClipNormSettings.clipAllWeights(2.0)]),
            r"clip_norm_settings cannot change from \[ClipNormSettings\(weightIds="
            r"None, maxNorm=1.0\)\] to \[ClipNormSettings\(weightIds=None, "
            r"maxNorm=2.0\)\]\. Give an optimizer with the same",
        ),
        (
            popart.Adam({}),
            popart.Adam(
                {}, clip_norm_settings=[popart.ClipNormSettings.clipWeights(["w1"], 1)]
            ),
            r"clip_norm_settings cannot change from \[\] to \[ClipNormSettings\(weigh",
        ),
    ],
)
def test_an_optimizer_cannot_change_to_another_formula(
    first: popart.Optimizer, second: popart.Optimizer, message: str
) -> None:
    session, _, _ = session_of(first)

    session.updateOptimizerFromHost(first)
    with pytest.raises(popart.popart_exception, match=message):
        session.updateOptimizerFromHost(second)


def test_each_value_has_a_method_that_returns_it_for_all_weights() -> None:
    optimizer = popart.Adam({"defaultBeta2": (0.5, False)})
    optimizer.insertSpecific("w1", {"beta2": (0.25, True)})

    beta2s = optimizer.beta2s()

    assert (beta2s.getDefault().val(), beta2s.getDefault().isConst()) == (0.5, False)
    assert (beta2s.get("w1").val(), beta2s.get("w1").isConst()) == (0.25, True)
    assert beta2s.get("w2").val() == 0.5
    assert optimizer.epss().get("w1").val() == 1e-6
    assert popart.ConstSGD(0.5).learningRates().get("w1").val() == 0.5
    assert not hasattr(optimizer, "momentums")


def test_the_names_of_momenta_may_change_where_there_are_none() -> None:
    kinds = popart.SGDAccumulatorAndMomentum
    first = popart.SGD({"defaultLearningRate": (0.1, False)})
    session, _, given = session_of(first)
    second = popart.SGD(
        {"defaultLearningRate": (0.0, False)}, accumulatorAndMomentum=kinds.Separate
    )
    before = weights_of(session, *WEIGHTS)

    session.updateOptimizerFromHost(second)
    session.run(popart.PyStepIO(given, session.initAnchorArrays()))

    assert_alike(weights_of(session, *WEIGHTS), before)


def test_weights_go_to_the_host_and_back_with_the_optimizers_tensors(
    tmp_path: Path,
) -> None:
    adam = popart.Adam({"defaultLearningRate": (0.1, False)})
    session, _, given = session_of(adam)
    io = popart.PyStepIO(given, session.initAnchorArrays())
    session.run(io)
    session.modelToHost(tmp_path / "model.onnx")
    session.run(io)
    expected = weights_of(session, *WEIGHTS)

    other, _, _ = session_of(adam)
    other.resetHostWeights(str(tmp_path / "model.onnx"))
    other.weightsFromHost()
    other.run(io)

    found = weights_of(other, *WEIGHTS)
    for name in WEIGHTS:
        assert np.array_equal(found[name], expected[name])
    step = np.empty([], np.float32)
    other.readWeights(popart.PyWeightsIO({popart.reservedStepPrefix() + "w1": step}))
    assert step == 2


def test_what_runs_on_the_device_is_seen_on_the_host_only_after_weights_to_host() -> (
    None
):
    session, _, given = session_of(popart.ConstSGD(0.1))
    before = weights_of(session, "b2")["b2"]
    session.run(popart.PyStepIO(given, session.initAnchorArrays()))
    found = np.empty_like(before)

    session.readWeights(popart.PyWeightsIO({"b2": found}))
    assert np.array_equal(found, before)

    assert not np.array_equal(weights_of(session, "b2")["b2"], before)


def test_weights_of_the_program_reach_the_device() -> None:
    session, _, given = session_of(popart.ConstSGD(0.0))
    new = np.arange(CLASSES, dtype=np.float32)

    session.writeWeights(popart.PyWeightsIO({"b2": new}))
    session.weightsFromHost()
    session.run(popart.PyStepIO(given, session.initAnchorArrays()))

    assert np.array_equal(weights_of(session, "b2")["b2"], new)


def test_weights_have_to_be_on_the_device_before_a_step() -> None:
    builder, names = network()
    session = popart.TrainingSession(
        *(builder.getModelProto(), popart.DataFlow(1, []), names["loss"]),
        *(popart.ConstSGD(0.1), device()),
    )
    with pytest.raises(popart.popart_exception, match=r"Call prepareDevice"):
        session.run(popart.PyStepIO({}, {}))
    session.prepareDevice()

    with pytest.raises(
        popart.popart_exception, match=r"Must call weightsFromHost before run"
    ):
        session.run(popart.PyStepIO({}, {}))


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ("nothing", "The loss 'nothing' is not a tensor of the model."),
        ("scores", r"has the shape \[4, 3\], but must be a scalar"),
    ],
)
def test_a_loss_is_a_scalar_of_the_model(loss: str, message: str) -> None:
    builder, names = network()

    with pytest.raises(popart.popart_exception, match=message):
        popart.TrainingSession(
            *(builder.getModelProto(), popart.DataFlow(1, []), names.get(loss, loss)),
            *(popart.ConstSGD(0.1), device()),
        )


def test_gradients_are_anchors_of_each_micro_batch() -> None:
    builder = popart.Builder()
    x = builder.addInputTensor("FLOAT", [1])
    builder.addInitializedInputTensor(np.full(1, 2, np.float32), "w")
    y = builder.aiOnnx.mul([x, "w"])
    z = builder.aiOnnx.mul([y, y])
    loss = builder.aiGraphcore.identityloss([z], popart.ReductionType.Sum)
    prefix = popart.reservedGradientPrefix()
    wanted = [prefix + name for name in (x, "w", y)]
    session = popart.TrainingSession(
        *(
            builder.getModelProto(),
            popart.DataFlow(1, dict.fromkeys(wanted, ALL)),
            loss,
        ),
        *(popart.ConstSGD(0.0), device()),
        userOptions=options(1, 3),
    )
    session.prepareDevice()
    session.weightsFromHost()
    anchors = session.initAnchorArrays()

    session.run(popart.PyStepIO({x: np.arange(3, dtype=np.float32)}, anchors))

    # y is 0, 2 and 4.
    found = {name: anchors[name].ravel().tolist() for name in wanted}
    assert found == {
        prefix + x: [0, 8, 16],
        prefix + "w": [0, 4, 16],
        prefix + y: [0, 4, 8],
    }


def test_anchored_gradients_of_weights_leave_no_tensors_behind() -> None:
    builder, names = network()
    session = popart.TrainingSession(
        builder.getModelProto(),
        popart.DataFlow(1, [popart.reservedGradientPrefix() + "w1"]),
        names["loss"],
        popart.ConstSGD(0.1),
        device(),
    )
    session.prepareDevice()
    session.weightsFromHost()
    given = {names[name]: array for name, array in data(1).items()}
    io = popart.PyStepIO(given, session.initAnchorArrays())

    def tensors_after_a_step() -> int:
        session.run(io)
        gc.collect()
        return sum(type(thing) is torch.Tensor for thing in gc.get_objects())

    tensors_after_a_step()

    assert tensors_after_a_step() == tensors_after_a_step()


def test_an_anchored_weight_has_the_value_that_the_update_leaves() -> None:
    builder = popart.Builder()
    x = builder.addInputTensor("FLOAT", [1])
    builder.addInitializedInputTensor(np.zeros(1, np.float32), "w")
    y = builder.aiOnnx.mul([x, "w"])
    loss = builder.aiGraphcore.identityloss([y], popart.ReductionType.Sum)
    session = popart.TrainingSession(
        *(builder.getModelProto(), popart.DataFlow(2, {"w": ALL}), loss),
        *(popart.ConstSGD(1.0), device()),
        userOptions=options(1, 2),
    )
    session.prepareDevice()
    session.weightsFromHost()
    anchors = session.initAnchorArrays()

    session.run(popart.PyStepIO({x: np.ones((2, 2, 1), np.float32)}, anchors))

    assert anchors["w"].ravel().tolist() == [0, -2, -2, -4]


@pytest.mark.parametrize("axis", [1, -1])
def test_the_loss_of_a_hopeless_guess_has_a_gradient(axis: int) -> None:
    builder = popart.Builder(opsets={"ai.onnx": 11})
    label = builder.addInputTensor("INT32", [1])
    scores = np.array([[0, 200]], np.float32)
    builder.addInitializedInputTensor(scores, "scores")
    probabilities = builder.aiOnnx.softmax(["scores"], axis)
    loss = builder.aiGraphcore.nllloss([probabilities, label])
    session = popart.TrainingSession(
        *(builder.getModelProto(), popart.DataFlow(1, {loss: ALL}), loss),
        *(popart.ConstSGD(1.0), device()),
    )
    session.prepareDevice()
    session.weightsFromHost()
    anchors = session.initAnchorArrays()

    session.run(popart.PyStepIO({label: np.zeros(1, np.int32)}, anchors))

    assert anchors[loss] == 200
    assert weights_of(session, "scores")["scores"].tolist() == [[1, 199]]


def test_a_label_that_is_no_class_lowers_the_scores_of_all_classes() -> None:
    """PopART's gradient is the probabilities without the one of the label."""
    builder = popart.Builder()
    label = builder.addInputTensor("INT32", [1])
    scores = np.log([[1, 3]]).astype(np.float32)
    builder.addInitializedInputTensor(scores, "scores")
    loss = builder.aiGraphcore.nllloss([builder.aiOnnx.softmax(["scores"]), label])
    session = popart.TrainingSession(
        *(builder.getModelProto(), popart.DataFlow(1, []), loss),
        *(popart.ConstSGD(1.0), device()),
    )
    session.prepareDevice()
    session.weightsFromHost()

    with pytest.warns(UserWarning, match="none of its classes, 0 to 1"):
        session.run(popart.PyStepIO({label: np.array([2], np.int32)}, {}))

    trained = weights_of(session, "scores")["scores"]
    np.testing.assert_allclose(trained, [[-0.25, np.log(3) - 0.75]], rtol=1e-6)


def test_weights_of_16_bits_are_updated_in_float32() -> None:
    builder = popart.Builder()
    x = builder.addInputTensor("FLOAT16", [1])
    builder.addInitializedInputTensor(np.ones(1, np.float16), "w")
    y = builder.aiOnnx.mul([x, "w"])
    loss = builder.aiGraphcore.identityloss([y], popart.ReductionType.Sum)
    session = popart.TrainingSession(
        *(builder.getModelProto(), popart.DataFlow(1, []), loss),
        *(popart.ConstSGD(2.0**-20), device()),
        userOptions=options(1, 2),
    )
    session.prepareDevice()
    session.weightsFromHost()
    # The sum of the gradients, 80000, is beyond float16.
    session.run(popart.PyStepIO({x: np.full((2, 1), 4e4, np.float16)}, {}))
    session.weightsToHost()
    found = np.empty(1, np.float16)

    session.readWeights(popart.PyWeightsIO({"w": found}))

    assert found[0] == np.float16(1 - 80000 * 2.0**-20)


def normalised(replicas: int) -> tuple[Any, str, dict[str, Any]]:
    builder = popart.Builder()
    x = builder.addInputTensor("FLOAT", [2, 1, 2])
    ones, zeros = np.ones(1, np.float32), np.zeros(1, np.float32)
    names = ["scale", "bias", "mean", "variance"]
    for name, initial in zip(names, (ones, zeros, zeros, ones), strict=True):
        builder.addInitializedInputTensor(initial, name)
    y = builder.aiOnnx.batchnormalization([x, *names], 5, momentum=0.75)[0]
    loss = builder.aiGraphcore.l1loss([y], 1.0)
    session = popart.TrainingSession(
        *(builder.getModelProto(), popart.DataFlow(1, {y: ALL, "mean": ALL}), loss),
        *(popart.ConstSGD(0.1), device(replicas)),
        userOptions=options(replicas),
    )
    session.prepareDevice()
    session.weightsFromHost()
    return session, x, session.initAnchorArrays()


def test_each_replica_keeps_running_statistics_of_its_own() -> None:
    session, x, anchors = normalised(2)
    values = np.array([[[0, 2], [4, 6]], [[10, 10], [10, 50]]], np.float32)

    for _ in range(2):
        session.run(popart.PyStepIO({x: values.reshape(2, 2, 1, 2)}, anchors))

    # Of the means 3 and 20, a quarter at first; then three quarters of that more.
    assert anchors["mean"].ravel().tolist() == [1.3125, 8.75]
    found = weights_of(session, "mean", "variance")
    assert found["mean"] == [1.3125]
    # The variance of 0, 2, 4, 6 is 20 / 3.
    assert found["variance"][0] == pytest.approx(0.75**2 + 7 / 16 * 20 / 3, rel=1e-6)


def dropped(replicas: int, seed: int) -> Any:
    builder = popart.Builder()
    x = builder.addInputTensor("FLOAT", [100])
    builder.addInitializedInputTensor(np.ones(1, np.float32), "w")
    y = builder.aiOnnx.mul([x, "w"])
    (y,) = builder.aiOnnx.dropout([y], 1, ratio=0.5)
    loss = builder.aiGraphcore.identityloss([y])
    session = popart.TrainingSession(
        *(builder.getModelProto(), popart.DataFlow(2, {y: ALL}), loss),
        *(popart.ConstSGD(0.0), device(replicas)),
        userOptions=options(replicas),
    )
    session.prepareDevice()
    session.weightsFromHost()
    session.setRandomSeed(seed)
    anchors = session.initAnchorArrays()
    session.run(popart.PyStepIO({x: np.ones((2, replicas, 100), np.float32)}, anchors))
    return anchors[y].reshape(2 * replicas, 100)


def test_dropout_differs_between_replicas_and_steps_but_not_between_runs() -> None:
    state = torch.get_rng_state()
    found = dropped(2, 7)

    assert np.array_equal(found, dropped(2, 7))
    assert not np.array_equal(found, dropped(2, 8))
    assert set(np.unique(found)) == {0, 2}
    assert len({row.tobytes() for row in found}) == 4
    # Nothing is drawn from the program's own generator.
    assert torch.equal(torch.get_rng_state(), state)


def test_numbers_that_are_not_finite_are_errors_if_the_options_say_so() -> None:
    builder = popart.Builder()
    x = builder.addInputTensor("FLOAT", [1])
    y = builder.aiOnnx.log([x])
    session = popart.InferenceSession(
        *(builder.getModelProto(), popart.DataFlow(1, [y]), device()),
        userOptions=options(enableFloatingPointChecks=True),
    )
    session.prepareDevice()
    anchors = session.initAnchorArrays()

    with pytest.raises(
        popart.popart_exception, match=r"Log has yielded a number that is not finite"
    ):
        session.run(popart.PyStepIO({x: np.zeros(1, np.float32)}, anchors))
