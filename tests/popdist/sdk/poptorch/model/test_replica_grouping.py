"""Weights of which each group of replicas has its own value."""

import copy
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from poptorch_models import options
from torch import nn

import poptorch
from tests.popdist.sdk.torch_instances import results

TYPES = poptorch.CommGroupType
ONE, ALL = (
    poptorch.VariableRetrievalMode.OnePerGroup,
    poptorch.VariableRetrievalMode.AllReplicas,
)
# The group of each of 4 replicas, in groups of 2 or of 1.
GROUPS = {
    TYPES.Consecutive: [0, 0, 1, 1],
    TYPES.Orthogonal: [0, 1, 0, 1],
    TYPES.NoGrouping: [0, 1, 2, 3],
}


class Split(nn.Module):
    """Has a weight and a bias of each group, and a weight that all replicas share."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.weight = nn.Parameter(torch.randn(groups, 3, 2))
        self.inner = nn.Linear(2, 2)
        self.inner.bias = nn.Parameter(torch.randn(groups, 2))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.inner(x @ self.weight).tanh()
        return y, poptorch.identity_loss(y**2, "mean")


def settings_of(replicas: int) -> poptorch.Options:
    made = options(replicas, accumulation=2)
    return made.outputMode(poptorch.OutputMode.All)


def grouped(model: nn.Module, kind: poptorch.CommGroupType, made: Any) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), 0.5, momentum=0.9)
    executor = poptorch.trainingModel(model, made, optimizer)
    executor.weight.replicaGrouping(kind, 2, ONE)
    executor.per_replica_params["inner.bias"] = kind, 2, ONE
    return executor


def batches() -> torch.Tensor:
    """Return the inputs of 3 calls: 2 steps of 4 replicas, with 5 rows each."""
    return torch.randn(3, 2, 4, 5, 3, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("kind", GROUPS)
def test_replicas_train_the_weights_of_their_group(kind: Any) -> None:
    groups = GROUPS[kind]
    model = Split(len(set(groups)))
    plain = copy.deepcopy(model)
    optimizer = torch.optim.SGD(plain.parameters(), 0.5, momentum=0.9)
    executor = grouped(model, kind, settings_of(4))

    for inputs in batches():
        outputs, losses = executor(inputs.flatten(0, 2))
        expected = []
        optimizer.zero_grad()
        for step in range(2):
            for replica, group in enumerate(groups):
                y = inputs[step, replica] @ plain.weight[group]
                y = (y @ plain.inner.weight.T + plain.inner.bias[group]).tanh()
                expected.append(y.detach())
                # A mean over all micro-batches, also those of other groups.
                ((y**2).mean() / 8).backward()
        optimizer.step()
        torch.testing.assert_close(outputs, torch.cat(expected))
        assert losses.shape == (8,)

    for name, value in plain.named_parameters():
        torch.testing.assert_close(model.get_parameter(name), value)
    assert len({tuple(row.ravel().tolist()) for row in model.weight}) == len(
        set(groups)
    )


@pytest.mark.parametrize("counts", [(2, 2), (1, 3)])
@pytest.mark.parametrize("kind", GROUPS)
def test_instances_train_as_one_does_to_the_bit(
    kind: Any, counts: tuple[int, int]
) -> None:
    def trained(first: int, replicas: int, made: Any) -> Any:
        model = Split(len(set(GROUPS[kind])))
        executor = grouped(model, kind, made)
        for inputs in batches():
            executor(inputs[:, first : first + replicas].flatten(0, 2))
        return {name: value.tolist() for name, value in model.state_dict().items()}

    def instance(index: int) -> Any:
        made = settings_of(counts[index])
        # popdist.poptorch.Options is for instances with as many replicas each.
        made.Distributed.configureProcessId(index, 2)
        return trained(index * counts[0], counts[index], made)

    alone = trained(0, 4, settings_of(4))

    assert results(counts, instance) == [alone] * 2


def test_groups_that_do_not_fit_the_replicas_of_other_instances_are_refused() -> None:
    def instance(index: int) -> str:
        # By its own options, each instance expects the other to have as many.
        replicas = [2, 1][index]
        made = settings_of(replicas)
        made.Distributed.configureProcessId(index, 2)
        model = Split(2 * replicas)
        optimizer = torch.optim.SGD(model.parameters(), 0.5)
        executor = poptorch.trainingModel(model, made, optimizer)
        for name in ("weight", "inner.bias"):
            executor.per_replica_params[name] = TYPES.NoGrouping, 0, ONE
        with pytest.raises(poptorch.Error) as error:
            executor(batches()[0, :, :replicas].flatten(0, 2))
        return str(error.value)

    refusals = results((2, 2), instance)

    assert [refusal.partition(".")[0] for refusal in refusals] == [
        f"weight has the shape [{count}, 3, 2], but 3 replicas in groups of 1 are 3 "
        "groups"
        for count in (4, 2)
    ]


def test_inference_uses_the_weights_of_the_replica() -> None:
    model = Split(4)
    executor = poptorch.inferenceModel(model, options(4))
    for name in ("weight", "inner.bias"):
        executor.per_replica_params[name] = TYPES.NoGrouping, 0, ALL
    x = batches()[0, 0].flatten(0, 1)

    found = executor(x)[0].view(4, 5, 2)

    for replica in range(4):
        y = x.view(4, 5, 3)[replica] @ model.weight[replica]
        expected = (y @ model.inner.weight.T + model.inner.bias[replica]).tanh()
        torch.testing.assert_close(found[replica], expected)


def test_optimizer_states_have_the_values_of_all_groups() -> None:
    model = Split(2)
    optimizer = poptorch.optim.AdamW(model.parameters(), 0.1)
    executor = poptorch.trainingModel(model, settings_of(4), optimizer)
    for name in ("weight", "inner.bias"):
        executor.per_replica_params[name] = TYPES.Orthogonal, 2, ONE
    executor(batches()[0].flatten(0, 2))

    state = optimizer.state_dict()["ipu_state"]

    assert state["Accl1___weight"].shape == (2, 3, 2)


def test_all_replicas_together_are_no_groups() -> None:
    model = nn.Linear(2, 2)
    executor = poptorch.inferenceModel(model, options(2))
    executor.weight.replicaGrouping(TYPES.All, 0, ONE)

    assert executor(torch.ones(4, 2)).equal(model(torch.ones(4, 2)))
    assert executor.per_replica_params == {"weight": (TYPES.All, 0, ONE)}
    # The model is compiled, and this changes nothing.
    executor.weight.replicaGrouping(TYPES.All, 0, ONE)
    executor.bias.replicaGrouping(TYPES.All, 0, ONE)


def test_groups_that_do_not_fit_are_refused() -> None:
    model = Split(2)
    executor = poptorch.inferenceModel(model, options(4))
    parameter: Any = executor.weight

    with pytest.raises(
        poptorch.Error, match=r"groups of 3 replicas, which must divide"
    ):
        parameter.replicaGrouping(TYPES.Consecutive, 3, ONE)
    with pytest.raises(
        poptorch.Error,
        match=r"weight has the shape \[2, 3, 2\], but 4 replicas in groups of 1 are 4 "
        r"groups\. Give it a first dimension of 4",
    ):
        parameter.replicaGrouping(TYPES.NoGrouping, 0, ONE)
    with pytest.raises(poptorch.Error, match=r"Use Var\w+Mode\.OnePerGroup"):
        parameter.replicaGrouping(TYPES.Consecutive, 2, ALL)
    inside: Any = executor.inner.bias
    with pytest.raises(poptorch.Error, match="must be called on a parameter of a tra"):
        inside.replicaGrouping(TYPES.Consecutive, 2, ONE)
    executor.per_replica_params.update(
        dict.fromkeys(("weight", "inner.bias"), (TYPES.Consecutive, 2, ONE))
    )
    executor.compile(torch.ones(4, 3))
    for kind in (TYPES.Orthogonal, TYPES.All):
        with pytest.raises(poptorch.Error, match="compiled, so the groups of weight c"):
            parameter.replicaGrouping(kind, 2, ONE)
    parameter.replicaGrouping(TYPES.Consecutive, 2, ONE)
    executor.destroy()
    parameter.replicaGrouping(TYPES.Orthogonal, 2, ONE)


@pytest.mark.parametrize("by_accumulator", [False, True], ids=["option", "accum_type"])
def test_running_means_are_over_the_replicas_of_a_group(by_accumulator: bool) -> None:
    model = Split(2)
    plain = copy.deepcopy(model)
    made = settings_of(4)
    if not by_accumulator:
        made.Training.setMeanAccumulationAndReplicationReductionStrategy(
            poptorch.MeanReductionStrategy.Running
        )
    accumulator = torch.float16 if by_accumulator else None
    optimizer = poptorch.optim.SGD(model.parameters(), 0.5, accum_type=accumulator)
    executor = poptorch.trainingModel(model, made, optimizer)
    for name in ("weight", "inner.bias"):
        executor.per_replica_params[name] = TYPES.Orthogonal, 2, ONE
    inputs = batches()[0]

    executor(inputs.flatten(0, 2))

    for step, replica in itertools.product(range(2), range(4)):
        group = replica % 2
        y = inputs[step, replica] @ plain.weight[group]
        y = (y @ plain.inner.weight.T + plain.inner.bias[group]).tanh()
        # Each group has 4 of the 8 micro-batches.
        ((y**2).mean() / 4).backward()
    assert plain.inner.weight.grad is not None
    # All replicas share this one.
    plain.inner.weight.grad /= 2
    torch.optim.SGD(plain.parameters(), 0.5).step()
    for name, value in plain.named_parameters():
        torch.testing.assert_close(model.get_parameter(name), value)


def test_lamb_scales_the_update_of_each_group_by_itself() -> None:
    model = Split(4)
    parts = [Split(1) for _ in range(4)]
    with torch.no_grad():
        for index, part in enumerate(parts):
            part.weight.copy_(model.weight[index : index + 1])
            part.inner.bias.copy_(model.inner.bias[index : index + 1])
            part.inner.weight.copy_(model.inner.weight)
    optimizer = poptorch.optim.LAMB(model.parameters(), 0.1, weight_decay=0.1)
    made = settings_of(4)
    made.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)
    executor = poptorch.trainingModel(model, made, optimizer)
    for name in ("weight", "inner.bias"):
        executor.per_replica_params[name] = TYPES.NoGrouping, 0, ONE
    inputs = batches()[0]

    executor(inputs.flatten(0, 2))

    for index, part in enumerate(parts):
        for step in range(2):
            y = part.inner(inputs[step, index] @ part.weight[0]).tanh()
            (y**2).mean().backward()
        grouped_weights = [part.weight, part.inner.bias]
        poptorch.optim.LAMB(grouped_weights, 0.1, weight_decay=0.1).step()
        torch.testing.assert_close(model.weight[index], part.weight[0])
        torch.testing.assert_close(model.inner.bias[index], part.inner.bias[0])


def test_a_saved_model_has_the_groups_of_its_weights(tmp_path: Path) -> None:
    inputs = batches()
    executor = grouped(Split(2), TYPES.Orthogonal, settings_of(4))
    executor(inputs[0].flatten(0, 2))
    executor.save(str(tmp_path / "model.poptorch"))

    loaded = poptorch.load(str(tmp_path / "model.poptorch"))
    for batch in inputs[1:]:
        _, expected = executor(batch.flatten(0, 2))
        assert loaded(batch.flatten(0, 2))[1].equal(expected)

    assert loaded.per_replica_params == executor.per_replica_params
    for (name, found), value in zip(
        loaded.named_parameters(), executor.parameters(), strict=True
    ):
        assert found.equal(value), name


def test_a_norm_over_all_groups_is_refused() -> None:
    model = Split(2)
    optimizer = poptorch.optim.AdamW(model.parameters(), 0.1, max_grad_norm=1.0)
    executor = poptorch.trainingModel(model, settings_of(4), optimizer)
    for name in ("weight", "inner.bias"):
        executor.per_replica_params[name] = TYPES.Orthogonal, 2, ONE

    with pytest.raises(poptorch.Error, match=r"weight, inner.bias differ between repl"):
        executor(batches()[0].flatten(0, 2))
