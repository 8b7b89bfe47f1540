"""The places and the order of a model's blocks."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Self

from ..enums import AutoStage, Liveness
from ..errors import require, require_poptorch, require_type


class Stage:
    """Blocks that one IPU executes one after another."""

    def __init__(self, *block_ids: str) -> None:
        require(
            all(isinstance(block, str) for block in block_ids),
            f"A stage is made of {block_ids}, but the ids of blocks are strings.",
        )
        self._blocks = block_ids
        self._stage_id = -1
        self._phase_id = -1
        self._ipu: int | None = None

    @property
    def blocks(self) -> Sequence[str]:
        """The ids of its blocks."""
        return self._blocks

    def ipu(self, ipu: int) -> Self:
        """Set the IPU that executes it."""
        require_type("ipu", ipu, int)
        self._ipu = ipu
        return self


class Phase:
    """Stages that are executed at the same time."""

    def __init__(self, *arg: str | Stage) -> None:
        stages = [stage for stage in arg if isinstance(stage, Stage)]
        blocks = [block for block in arg if isinstance(block, str)]
        require(
            len(arg) in (len(stages), len(blocks)),
            f"A phase is made of {arg}, but takes ids of blocks or stages, not both.",
        )
        self.stages: Sequence[Stage] = stages if stages else [Stage(*blocks)]

    def stage(self, idx: int) -> Stage:
        """Return one of its stages."""
        return self.stages[idx]

    def ipus(self, *ipus: int) -> None:
        """Set the IPU of each stage."""
        require(
            len(ipus) == len(self.stages),
            f"{len(ipus)} IPUs are given for {len(self.stages)} stages. Give one each.",
        )
        for stage, ipu in zip(self.stages, ipus, strict=True):
            stage.ipu(ipu)


class _IExecutionStrategy:
    """The common part of strategies: the blocks with a stage, and the way to go on.

    `auto_stage` is how other blocks get a stage; None: there may be no others.
    """

    # The strategy's entries in Options.toDict().
    _backend: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, stages: Sequence[Stage], auto_stage: AutoStage | None) -> None:
        self._block_map: dict[str, Stage] = {}
        self._auto_stage = auto_stage
        for stage in stages:
            for block in stage.blocks:
                require(
                    block not in self._block_map,
                    f"Block {block!r} is given to several stages. Give it to one.",
                )
                self._block_map[block] = stage

    def stage(self, block_id: str) -> Stage:
        """Return the stage that a block was given."""
        require(block_id in self._block_map, f"There is no block {block_id!r}.")
        return self._block_map[block_id]

    def stageOf(self, block_id: str, ipu_id: int | None) -> Stage:
        """Return the stage of a block of the model, which may get one only now."""
        if block_id in self._block_map:
            return self._block_map[block_id]
        require(
            self._auto_stage is not None,
            f"The model has block {block_id!r}, which no stage has. The stages have: "
            f"{', '.join(self._block_map)}.",
        )
        stage = Stage(block_id)
        # 0 is for operations before the first block.
        stage._stage_id = 1 + len(self._block_map)
        if self._auto_stage == AutoStage.SameAsIpu:
            if ipu_id is None:
                raise AssertionError(
                    f"Block {block_id!r} has no IPU, by which AutoStage.SameAsIpu "
                    "numbers its stage. Give it an ipu_id, or use "
                    "AutoStage.AutoIncrement."
                )
            stage._stage_id = ipu_id
        self._block_map[block_id] = stage
        return stage

    def backendOptions(self) -> dict[str, Any]:
        """Return the part of Options.toDict that is about the strategy."""
        return dict(self._backend)


class PipelinedExecution(_IExecutionStrategy):
    """All stages are executed at once, each for another micro-batch."""

    _backend = MappingProxyType({"execution_mode": 0})

    def __init__(self, *args: AutoStage | Stage | str | Sequence[str]) -> None:
        if len(args) == 1 and isinstance(args[0], AutoStage):
            super().__init__([], args[0])
            return
        stages = [_stage(each) for each in args]
        for index, stage in enumerate(stages):
            stage._stage_id = index
        super().__init__(stages, None if stages else AutoStage.SameAsIpu)


class ShardedExecution(PipelinedExecution):
    """The stages are executed one after another, each on its IPU."""

    _backend = MappingProxyType({"execution_mode": 1})


def _stage(element: object) -> Stage:
    if isinstance(element, Stage):
        return element
    blocks = [element] if isinstance(element, str) else element
    require(
        isinstance(blocks, list | tuple)
        and all(isinstance(block, str) for block in blocks),
        f"{element!r} is neither a poptorch.Stage nor block IDs (strings).",
    )
    assert isinstance(blocks, list | tuple)
    return Stage(*blocks)


class _IPhasedExecution(_IExecutionStrategy):
    """The phases are executed one after another."""

    _serial: bool
    _backend: dict[str, Any]

    def __init__(self, *phases: Phase | Stage | Sequence[Any]) -> None:
        self._phases = list(_phases(phases))
        require(
            self._phases,
            "A phased execution has no phases. Give at least one: its stages are not "
            "made by an AutoStage.",
        )
        for index, phase in enumerate(self._phases):
            for stage in phase.stages:
                stage._phase_id = index
        super().__init__([s for phase in self._phases for s in phase.stages], None)
        self._backend = {
            "execution_mode": 2,
            "separate_backward_phase": False,
            "tensors_liveness": Liveness.AlwaysLive.value,
            "serial_phases_execution": self._serial,
        }

    def phase(self, phase: int) -> Phase:
        """Return one of the phases."""
        require(
            isinstance(phase, int) and phase >= 0,
            f"The phase is {phase!r}, but must be an integer of 0 or more.",
        )
        return self._phases[phase]

    def useSeparateBackwardPhase(self, use: bool = True) -> Self:
        """Set whether the last phase forward is another one than the first backward."""
        require_type("use", use, bool)
        self._backend["separate_backward_phase"] = use
        return self


def _phases(elements: Sequence[Any]) -> Iterator[Phase]:
    for each in elements:
        if isinstance(each, Phase):
            yield each
        elif isinstance(each, list) and any(isinstance(e, Phase) for e in each):
            yield from _phases(each)
        else:
            yield Phase(*([each] if isinstance(each, str | Stage) else each))


class ParallelPhasedExecution(_IPhasedExecution):
    """Two groups of IPUs execute the phases in turn."""

    _serial = False

    def sendTensorsOffChipAfterFwd(self, off_chip: bool = True) -> Self:
        """Set whether tensors leave the chip after the phases forward."""
        require(isinstance(off_chip, bool), f"{off_chip!r} must be a bool.")
        liveness = Liveness.OffChipAfterFwd if off_chip else Liveness.AlwaysLive
        self._backend["tensors_liveness"] = liveness.value
        return self


class SerialPhasedExecution(_IPhasedExecution):
    """One group of IPUs executes all phases."""

    _serial = True

    def setTensorsLiveness(self, liveness: Liveness) -> Self:
        """Set how long tensors of a phase stay on the chip."""
        require_poptorch(liveness, Liveness)
        self._backend["tensors_liveness"] = liveness.value
        return self
