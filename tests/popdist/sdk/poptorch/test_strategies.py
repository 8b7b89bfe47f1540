import pytest

import poptorch


def test_blocks_get_the_stage_they_were_listed_in() -> None:
    strategy = poptorch.PipelinedExecution(
        "a", ["b", "c"], poptorch.Stage("d", "e").ipu(1)
    )

    stages = [strategy.stage(block)._stage_id for block in "abcde"]

    assert stages == [0, 1, 1, 2, 2]
    assert strategy.backendOptions() == {"execution_mode": 0}
    with pytest.raises(AssertionError, match="no block 'f'"):
        strategy.stage("f")
    with pytest.raises(AssertionError, match="has block 'f', which no stage has"):
        strategy.stageOf("f", 0)


def test_a_block_has_one_stage() -> None:
    with pytest.raises(AssertionError, match="'a' is given to several stages"):
        poptorch.ShardedExecution("a", poptorch.Stage("b", "a"))


def test_blocks_without_stages_get_that_of_their_ipu() -> None:
    strategy = poptorch.PipelinedExecution()

    assert strategy.stageOf("a", 3)._stage_id == 3
    with pytest.raises(AssertionError, match="'b' has no IPU"):
        strategy.stageOf("b", None)


def test_blocks_without_stages_get_the_next_one() -> None:
    strategy = poptorch.ShardedExecution(poptorch.AutoStage.AutoIncrement)

    assert [strategy.stageOf(b, None)._stage_id for b in "abca"] == [1, 2, 3, 1]
    assert strategy.backendOptions() == {"execution_mode": 1}


@pytest.mark.parametrize(
    "phases",
    [
        [poptorch.Phase(poptorch.Stage("a"), poptorch.Stage("b")), poptorch.Phase("c")],
        [[poptorch.Stage("a"), poptorch.Stage("b")], ["c"]],
        [
            [
                poptorch.Phase(poptorch.Stage("a"), poptorch.Stage("b")),
                poptorch.Phase("c"),
            ]
        ],
    ],
    ids=["phases", "lists", "list-of-phases"],
)
def test_phases_in_all_their_forms(phases: list[object]) -> None:
    strategy = poptorch.SerialPhasedExecution(*phases)
    strategy.phase(0).ipus(0, 2)

    assert [strategy.stage(block)._phase_id for block in "abc"] == [0, 0, 1]
    assert [strategy.stage(block)._ipu for block in "abc"] == [0, 2, None]
    assert strategy.useSeparateBackwardPhase().backendOptions() == {
        "execution_mode": 2,
        "separate_backward_phase": True,
        "tensors_liveness": 0,
        "serial_phases_execution": True,
    }
    with pytest.raises(AssertionError, match="1 IPUs are given for 2 stages"):
        strategy.phase(0).ipus(0)


def test_phases_are_given() -> None:
    with pytest.raises(AssertionError, match="has no phases"):
        poptorch.ParallelPhasedExecution()


def test_only_a_strategy_is_one() -> None:
    with pytest.raises(AssertionError, match="is not an execution strategy"):
        poptorch.Options().setExecutionStrategy(poptorch.AutoStage.SameAsIpu)


def test_a_strategy_without_options_of_its_own_has_none() -> None:
    class Own(poptorch.options._IExecutionStrategy):
        pass

    assert Own([], None).backendOptions() == {}
