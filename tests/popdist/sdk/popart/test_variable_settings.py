"""Weights with a value of their own for each group of replicas."""

from typing import Any

import numpy as np
import pytest
import torch
from popart_models import ALL, device, options

import popart
import popdist
import popdist.popart
from tests.popdist.sdk.torch_instances import results

KINDS = popart.CommGroupType
REPLICAS = 4
# For each kind of groups of two, or of one, the group of each replica.
GROUPS = {
    KINDS.Consecutive: [0, 0, 1, 1],
    KINDS.Orthogonal: [0, 1, 0, 1],
    KINDS.Ungrouped: [0, 1, 2, 3],
}
ALL_REPLICAS = popart.VariableRetrievalMode.AllReplicas
RANDOM = np.random.default_rng(33)
# Batches, replicas, samples, features.
DATA = RANDOM.normal(size=(3, REPLICAS, 2, 3)).astype(np.float32)
SHARED = RANDOM.normal(size=(3, 3)).astype(np.float32)


def rows_of(kind: popart.CommGroupType) -> Any:
    """Return a weight of three elements with a row for each group."""
    count = max(GROUPS[kind]) + 1
    return np.random.default_rng(count).normal(size=(count, 3)).astype(np.float32)


def model_of(rows: Any, *settings: Any) -> tuple[popart.Builder, dict[str, str]]:
    """Return the model (data @ shared * grouped)**2, with names of its tensors."""
    builder = popart.Builder()
    data = builder.addInputTensor("FLOAT", [2, 3], "data")
    shared = builder.addInitializedInputTensor(SHARED, "shared")
    grouped = builder.addInitializedInputTensor(
        rows, popart.VariableSettings(*settings), "grouped"
    )
    product = builder.aiOnnx.mul([builder.aiOnnx.matmul([data, shared]), grouped])
    square = builder.aiOnnx.mul([product, product])
    loss = builder.aiGraphcore.identityloss([square], popart.ReductionType.Sum)
    return builder, {"loss": loss, "grouped": grouped, "data": data}


def trained(kind: popart.CommGroupType, optimizer: popart.Optimizer) -> Any:
    """Return the losses of this instance, its anchored rows, and all weights."""
    made = options()
    popdist.popart.configureSessionOptions(made)
    builder, names = model_of(rows_of(kind), popart.CommGroup(kind, 2))
    anchors = {names["loss"]: ALL, names["grouped"]: ALL}
    session = popart.TrainingSession(
        *(builder.getModelProto(), popart.DataFlow(len(DATA), anchors)),
        *(names["loss"], optimizer, device(made.replicatedGraphCount)),
        userOptions=made,
    )
    session.prepareDevice()
    session.weightsFromHost()
    arrays = session.initAnchorArrays()
    first = popdist.getReplicaIndexOffset()
    share = DATA[:, first : first + popdist.getNumLocalReplicas()]
    data = {names["data"]: np.ascontiguousarray(share)}
    session.run(popart.PyStepIO(data, arrays))
    session.weightsToHost()
    weights = {"shared": np.empty_like(SHARED), "grouped": np.empty_like(rows_of(kind))}
    session.readWeights(popart.PyWeightsIO(weights))
    losses = arrays[names["loss"]].reshape(len(DATA), -1)
    kept = arrays[names["grouped"]].reshape(len(DATA), -1, 3)
    return losses, kept, weights


def plain(kind: popart.CommGroupType, make: Any) -> Any:
    """Return the same by torch: losses, rows of replicas, and weights."""
    shared = torch.tensor(SHARED, requires_grad=True)
    rows = [torch.tensor(row, requires_grad=True) for row in rows_of(kind)]
    optimizer = make([shared, *rows])
    losses, kept = [], []
    for batch in DATA:
        optimizer.zero_grad()
        of_replicas = []
        for replica, data in enumerate(torch.from_numpy(batch)):
            row = rows[GROUPS[kind][replica]]
            of_replicas.append(((data @ shared * row) ** 2).sum())
        sum(of_replicas).backward()
        optimizer.step()
        losses.append([loss.item() for loss in of_replicas])
        kept.append([rows[group].detach().clone().numpy() for group in GROUPS[kind]])
    grouped = np.stack([row.detach().numpy() for row in rows])
    return losses, kept, {"shared": shared.detach().numpy(), "grouped": grouped}


OPTIMIZERS = {
    "sgd": (
        popart.SGD(
            {"defaultLearningRate": (0.01, False), "defaultMomentum": (0.9, False)}
        ),
        lambda weights: torch.optim.SGD(weights, 0.01, 0.9),
    ),
    "adam": (
        popart.Adam({"defaultLearningRate": (0.01, False), "defaultEps": (1e-8, True)}),
        lambda weights: torch.optim.Adam(weights, 0.01),
    ),
}


@pytest.mark.parametrize("rows", [(4,), (2, 2), (1, 1, 1, 1)])
@pytest.mark.parametrize("kind", GROUPS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_each_group_of_replicas_trains_a_value_of_its_own(
    rows: tuple[int, ...], kind: popart.CommGroupType, name: str
) -> None:
    optimizer, make = OPTIMIZERS[name]

    instances = results(rows, lambda index: trained(kind, optimizer))

    losses, kept, weights = plain(kind, make)
    found = np.concatenate([losses for losses, _, _ in instances], axis=1)
    np.testing.assert_allclose(found, losses, rtol=1e-5)
    anchored = np.concatenate([kept for _, kept, _ in instances], axis=1)
    np.testing.assert_allclose(anchored, kept, rtol=1e-5, atol=1e-6)
    for _, _, ours in instances:
        for weight, value in weights.items():
            np.testing.assert_allclose(ours[weight], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("strategy", "replicas"),
    [("Post", REPLICAS), ("PostAndLoss", REPLICAS), ("Running", 2)],
)
def test_a_mean_of_gradients_is_divided_by_all_replicas_or_by_those_of_the_group(
    strategy: str, replicas: int
) -> None:
    rows = rows_of(KINDS.Consecutive)
    mean = {
        "accumulationAndReplicationReductionType": popart.ReductionType.Mean,
        "meanAccumulationAndReplicationReductionStrategy": getattr(
            popart.MeanReductionStrategy, strategy
        ),
    }
    change = []
    for more in ({}, mean):
        session = session_of(rows, popart.CommGroup(KINDS.Consecutive, 2), **more)
        session.prepareDevice()
        session.weightsFromHost()
        session.run(popart.PyStepIO({"data": DATA[0]}, session.initAnchorArrays()))
        session.weightsToHost()
        values = np.empty_like(rows)
        session.readWeights(popart.PyWeightsIO({"grouped": values}))
        change.append(values - rows)

    np.testing.assert_allclose(change[1] * replicas, change[0], rtol=1e-4, atol=1e-6)


def session_of(rows: Any, *settings: Any, optimizer: Any = None, **more: Any) -> Any:
    builder, names = model_of(rows, *settings)
    assert builder.getTensorShape("grouped") == list(rows.shape[1:])
    return popart.TrainingSession(
        *(builder.getModelProto(), popart.DataFlow(1, [])),
        *(names["loss"], optimizer or popart.ConstSGD(0.1), device(REPLICAS)),
        userOptions=options(REPLICAS, **more),
    )


def test_values_come_back_from_groups_or_from_all_replicas(tmp_path: Any) -> None:
    group, rows = popart.CommGroup(KINDS.Orthogonal, 2), rows_of(KINDS.Orthogonal)
    settings = popart.VariableSettings(group, ALL_REPLICAS)
    assert settings.numReplicasReturningVariable(REPLICAS) == REPLICAS
    assert popart.VariableSettings(group).numReplicasReturningVariable(REPLICAS) == 2
    assert settings.getSharedVariableDomain() == group
    assert settings.getRetrievalMode() == ALL_REPLICAS
    session = session_of(rows, group, ALL_REPLICAS)
    session.modelToHost(tmp_path / "model.onnx")
    other = session_of(rows * 2, group)
    other.resetHostWeights(str(tmp_path / "model.onnx"))
    values, others = np.empty((REPLICAS, 3), np.float32), np.empty_like(rows)

    session.readWeights(popart.PyWeightsIO({"grouped": values}))
    other.readWeights(popart.PyWeightsIO({"grouped": others}))

    np.testing.assert_array_equal(values, rows[[0, 1, 0, 1]])
    np.testing.assert_array_equal(others, rows)


@pytest.mark.parametrize(
    ("settings", "first"),
    [
        ([popart.CommGroup(KINDS.Consecutive, 2)], 2),
        ([popart.CommGroup(KINDS.Orthogonal, 2)], 1),
        ([popart.CommGroup(KINDS.Ungrouped, 0)], 1),
    ],
)
def test_a_group_is_represented_by_its_first_replica(
    settings: list[Any], first: int
) -> None:
    assert popart.VariableSettings(*settings).getGroupRepresentative(1) == first


@pytest.mark.parametrize(
    ("rows", "group", "error"),
    [
        (
            3,
            (KINDS.Consecutive, 2),
            r"grouped has 3 rows, but 4 replicas in groups of 2",
        ),
        (
            4,
            (KINDS.Consecutive, 3),
            r"replicaGroupSize is 3, but must divide the 4 rep",
        ),
        (4, (KINDS.Orthogonal, 0), r"replicaGroupSize is 0, but must divide the 4 rep"),
    ],
)
def test_groups_that_do_not_fit_are_refused(rows: int, group: Any, error: str) -> None:
    with pytest.raises(popart.popart_exception, match=error):
        session_of(np.ones((rows, 3), np.float32), popart.CommGroup(*group))


@pytest.mark.parametrize(
    "optimizer",
    [
        popart.SGD({}, [popart.ClipNormSettings.clipAllWeights(1.0)]),
        popart.Adam({}, popart.AdamMode.Lamb),
    ],
)
def test_an_optimizer_that_needs_norms_is_refused(optimizer: Any) -> None:
    group, rows = popart.CommGroup(KINDS.Ungrouped), rows_of(KINDS.Ungrouped)

    with pytest.raises(popart.popart_exception, match=r"^grouped differ between repl"):
        session_of(rows, group, optimizer=optimizer)


def test_other_settings_and_integers_are_refused() -> None:
    group = popart.CommGroup(KINDS.Ungrouped, 0)

    with pytest.raises(popart.popart_exception, match=r"got 3, but takes a CommGroup"):
        popart.VariableSettings(group, 3)
    with pytest.raises(
        popart.popart_exception, match=r"AllReduceReplicas.*, but takes"
    ):
        popart.VariableSettings(popart.VariableRetrievalMode.AllReduceReplicas)
    with pytest.raises(popart.popart_exception, match=r"AllReplicas needs a CommGroup"):
        popart.VariableSettings(ALL_REPLICAS)
    with pytest.raises(
        popart.popart_exception, match=r"init_input is INT32 \[4\], but"
    ):
        popart.Builder().addInitializedInputTensor(
            np.ones(4, np.int32), popart.VariableSettings(group)
        )
