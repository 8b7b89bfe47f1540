import copy
from typing import Any

import pytest
import torch
from poptorch_models import options
from torch import nn

import poptorch
from poptorch.annotations import count_ipus, count_stages
from poptorch.execution import BlockUse, Execution
from poptorch.model import run_settings


class Parts(nn.Module):
    def __init__(self, *ipus: int) -> None:
        super().__init__()
        layers = [nn.Linear(2, 2) for _ in ipus]
        for layer, ipu in zip(layers, ipus, strict=True):
            poptorch.BeginBlock(layer, ipu_id=ipu)
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return poptorch.identity_loss(self.layers(x), reduction="mean")


@pytest.fixture
def two_ipus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_settings, "isPopdistEnvSet", lambda: True)
    monkeypatch.setattr(run_settings, "getNumIpusPerReplica", lambda: 2)


def test_blocks_on_more_ipus_than_a_replica_has_are_refused(two_ipus: None) -> None:
    executor = poptorch.inferenceModel(Parts(0, 2), options())

    with pytest.raises(poptorch.Error) as refusal:
        executor(torch.ones(1, 2))

    assert str(refusal.value) == (
        "The model's blocks are put on 3 IPUs, but each replica has 2. Start the "
        "program with poprun --ipus-per-replica 3, or put the blocks on fewer IPUs."
    )


def test_blocks_on_the_ipus_of_a_replica_run(two_ipus: None) -> None:
    executor = poptorch.trainingModel(Parts(0, 1), options(accumulation=3))

    assert executor(torch.ones(3, 2)).shape == ()


class Chain(nn.Module):
    """Computes before its first block."""

    def __init__(self, *ipus: int) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.layers = nn.Sequential(
            *(poptorch.BeginBlock(nn.Linear(2, 2), ipu_id=ipu) for ipu in ipus)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return poptorch.identity_loss(self.layers(self.first(x)), reduction="sum")


@pytest.mark.parametrize(
    ("model", "stages", "needed"),
    [(Parts(0, 1), 2, 3), (Chain(1), 2, 3), (Chain(1, 2, 3), 4, 7)],
)
def test_a_pipeline_needs_micro_batches_for_its_stages(
    model: nn.Module, stages: int, needed: int
) -> None:
    few = needed - 1
    with pytest.raises(poptorch.Error) as refusal:
        poptorch.trainingModel(model, options(accumulation=few))(torch.ones(few, 2))

    assert str(refusal.value).startswith(
        "poptorch.Options().Training.gradientAccumulation must be greater than or "
        f"equal to the number of pipeline stages ({needed}) when using "
        "poptorch.PipelinedExecution. Please note that a model with "
        f"{stages} pipeline stages in PopTorch will have an additional {stages - 1} "
        f"stages when training. It is {few}: "
    )
    enough = options(accumulation=needed)
    poptorch.trainingModel(copy.deepcopy(model), enough)(torch.ones(needed, 2))


def test_a_pipeline_infers_on_as_many_batches_as_it_has_stages() -> None:
    model = Chain(1, 2, 3)
    with pytest.raises(poptorch.Error) as refusal:
        poptorch.inferenceModel(model, options(iterations=3))(torch.ones(3, 2))

    assert str(refusal.value).startswith(
        "poptorch.Options().deviceIterations must be greater than or equal to the "
        "number of pipeline stages (4) when using poptorch.PipelinedExecution. It is 3:"
    )
    poptorch.inferenceModel(model, options(iterations=4))(torch.ones(4, 2))
    accumulating, sharded = options(accumulation=2), options(accumulation=2)
    sharded.setExecutionStrategy(poptorch.ShardedExecution())
    with pytest.raises(poptorch.Error, match=r"Use .*deviceIterations to process"):
        poptorch.inferenceModel(model, accumulating)
    with pytest.raises(poptorch.Error, match=r"a poptorch.inferenceModel\(\)\.$"):
        poptorch.inferenceModel(model, sharded)


def test_what_is_sharded_needs_no_micro_batches(two_ipus: None) -> None:
    sharded = options()
    sharded.setExecutionStrategy(
        poptorch.ShardedExecution(poptorch.AutoStage.SameAsIpu)
    )
    poptorch.trainingModel(Parts(0, 1), sharded)(torch.ones(1, 2))


def used(run: Any) -> list[BlockUse]:
    with Execution() as execution:
        run()
    return execution.blocks


def test_blocks_are_recorded_where_they_run() -> None:
    @poptorch.BlockFunction("f", ipu_id=1)
    def function() -> int:
        return 5

    def run() -> None:
        with poptorch.Block("a", ipu_id=0):
            pass
        assert function() == 5
        poptorch.Block.start("b")
        assert poptorch.isRunningOnIpu()
        assert poptorch.BeginBlock(lambda: 6, "g", 3)() == 6

    assert used(run) == [
        BlockUse("a", 0),
        BlockUse("f", 1),
        BlockUse("b", None),
        BlockUse("g", 3),
    ]
    assert not poptorch.isRunningOnIpu()


def test_a_layer_begins_one_block_until_blocks_are_removed() -> None:
    layer = nn.Linear(2, 2)
    assert poptorch.BeginBlock(layer, "a", ipu_id=0) is layer
    with pytest.raises(poptorch.Error, match="has already been assigned to a block"):
        poptorch.BeginBlock(layer, "b")

    poptorch.removeBlocks(nn.Sequential(layer))

    assert used(lambda: layer(torch.ones(1, 2))) == []
    poptorch.BeginBlock(layer, "b", ipu_id=0)


def test_ipus_and_stages_follow_from_blocks_and_strategy() -> None:
    same = poptorch.PipelinedExecution()
    stages = poptorch.PipelinedExecution(
        poptorch.Stage("a").ipu(3), poptorch.Stage("b")
    )
    blocks = [BlockUse("a", None), BlockUse("b", None)]
    placed = [BlockUse("a", 0), BlockUse("b", 1), BlockUse("a", 0)]

    assert (count_ipus(stages, blocks), count_stages(stages, blocks)) == (4, 2)
    assert (count_ipus(same, placed), count_stages(same, placed)) == (2, 2)
    assert (count_ipus(same, []), count_stages(same, [])) == (1, 1)
    assert count_stages(poptorch.ShardedExecution(), placed) == 1
    with pytest.raises(AssertionError, match="Block 'a' has no IPU"):
        count_ipus(same, blocks)


def test_an_old_name_puts_layers_and_blocks_on_ipus() -> None:
    class Old(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = poptorch.IPU(1, nn.Linear(2, 2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.layer(x)
            with poptorch.IPU(2):
                return x + 1

    executor = poptorch.inferenceModel(Old(), options(iterations=2))
    executor.compile(torch.ones(2, 2))

    assert executor._state.compiled.ipus == 3
