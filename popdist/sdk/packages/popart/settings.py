"""The structures that session options hold.

Most of them are about the memory of tensors and the order of a device's work: they are
recorded, and change nothing on a CPU.
"""

from dataclasses import dataclass, field
from enum import IntEnum

from . import enums

_ALL_GRADIENTS = enums.GradientTensorTrackingMethod.AllNonViewChangingGradientTensors


@dataclass(slots=True)
class CommGroup:
    """The replicas that share a tensor."""

    type: enums.CommGroupType = enums.CommGroupType.All
    replicaGroupSize: int = 0


@dataclass(slots=True)
class TensorLocation:
    """In which memory tensors are."""

    storage: enums.TensorStorage = enums.TensorStorage.OnChip
    replicatedTensorSharding: IntEnum = enums.ReplicatedTensorSharding.Off
    shardingDomain: CommGroup = field(default_factory=CommGroup)
    loadTileSet: enums.TileSet = enums.TileSet.Compute
    storageTileSet: enums.TileSet = enums.TileSet.Compute

    def numbers(self) -> list[int]:
        """Return all of it as the attribute of a node stores it."""
        return [
            *(self.storage, self.loadTileSet, self.storageTileSet),
            *(self.replicatedTensorSharding, self.shardingDomain.type),
            self.shardingDomain.replicaGroupSize,
        ]


@dataclass(slots=True)
class TensorLocationSettings:
    """In which memory the tensors of one kind are."""

    # Also a TensorStorage, which stands for a location in it.
    location: TensorLocation = field(default_factory=TensorLocation)
    minElementsForOffChip: int = 2
    minElementsForReplicatedTensorSharding: int = 8192

    def __post_init__(self) -> None:
        if isinstance(self.location, enums.TensorStorage):
            self.location = TensorLocation(self.location)


@dataclass(slots=True)
class AccumulateOuterFragmentSettings:
    """How the weight updates of several IPUs are scheduled."""

    schedule: IntEnum = enums.AccumulateOuterFragmentSchedule.Serial
    excludedVirtualGraphs: list[int] = field(default_factory=list)


@dataclass(slots=True)
class AutodiffSettings:
    """The recomputation in the backward pass of a subgraph."""

    stitchStrategy: IntEnum = enums.AutodiffStitchStrategy.RecomputeAllNonInputs


@dataclass(slots=True)
class AutomaticLossScalingSettings:
    """How the loss scaling follows the gradients. A session refuses it if enabled."""

    enabled: bool = False
    toTrackTensors: list[str] | None = None
    binEdgeLocation: float = 0.125
    thresholdUpperCountProportion: float = 1e-7
    updatePeriod: int = 1
    gradientTensorTrackingMethod: IntEnum = _ALL_GRADIENTS


@dataclass(slots=True)
class BatchSerializationSettings:
    """Into how many parts a batch is divided to need less memory."""

    factor: int = 0
    concatOnVirtualGraphChange: bool = True
    concatOnExecutionPhaseChange: bool = True
    concatOnPipelineStageChange: bool = True
    transformContext: IntEnum = enums.BatchSerializationTransformContext.Fwd
    method: IntEnum = enums.BatchSerializationMethod.UnrollDynamic
    batchSchedule: IntEnum = enums.BatchSerializationBatchSchedule.Isomorphic


@dataclass(slots=True)
class ExecutionPhaseSettings:
    """How phased execution loads tensors."""

    phases: int = 0
    stages: int = 2
    weightIOSchedule: IntEnum = enums.ExecutionPhaseIOSchedule.Preload
    activationIOSchedule: IntEnum = enums.ExecutionPhaseIOSchedule.Preload
    optimizerStateIOSchedule: IntEnum = enums.ExecutionPhaseIOSchedule.OnDemand
    accumulatorIOSchedule: IntEnum = enums.ExecutionPhaseIOSchedule.Preload
    schedule: enums.ExecutionPhaseSchedule = enums.ExecutionPhaseSchedule.Interleaving


@dataclass(slots=True)
class ReplicatedCollectivesSettings:
    """How the collective operations of replicas are merged."""

    prepareScheduleForMergingCollectives: bool = False
    mergeAllReduceCollectives: bool = False
    mergeReduceScatterCollectives: bool = False
    mergeAllGatherCollectives: bool = False


@dataclass(slots=True)
class DeveloperSettings:
    """Settings for PopART's own developers."""

    timePartitionLoggerThresholdPercentage: float = 1.0
