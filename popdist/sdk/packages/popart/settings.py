"""The structures that session options hold.

Most of them are about the memory of tensors and the order of a device's work: they are
recorded, and change nothing on a CPU.
"""

from dataclasses import astuple, dataclass, field
from enum import IntEnum

from popdist.replicated.variable_groups import VariableGroups

from . import enums
from .enums import VariableRetrievalMode as Retrieval
from .errors import popart_exception

_ALL_GRADIENTS = enums.GradientTensorTrackingMethod.AllNonViewChangingGradientTensors


@dataclass(slots=True)
class CommGroup:
    """The replicas that share a tensor."""

    type: enums.CommGroupType = enums.CommGroupType.All
    replicaGroupSize: int = 0


class VariableSettings:
    """The groups of replicas that each have a value of their own of a weight."""

    def __init__(self, *settings: CommGroup | Retrieval) -> None:
        """Make settings of a CommGroup, a VariableRetrievalMode, or both.

        Raises:
            popart_exception: There is another argument, AllReduceReplicas, or
                AllReplicas without groups.
        """
        self._domain, self._mode = CommGroup(), Retrieval.OnePerGroup
        for setting in settings:
            if isinstance(setting, CommGroup):
                self._domain = setting
            elif setting in (Retrieval.OnePerGroup, Retrieval.AllReplicas):
                self._mode = setting
            else:
                raise popart_exception(
                    f"VariableSettings got {setting!r}, but takes a CommGroup, and "
                    "VariableRetrievalMode.OnePerGroup or AllReplicas."
                )
        if self._mode == Retrieval.AllReplicas and not self.is_grouped:
            raise popart_exception(
                "VariableRetrievalMode.AllReplicas needs a CommGroup of another type "
                "than All: the replicas share one value. Use OnePerGroup."
            )

    def getSharedVariableDomain(self) -> CommGroup:
        """Return the replicas that share a value."""
        return self._domain

    def getRetrievalMode(self) -> Retrieval:
        """Return whose values come back from the device."""
        return self._mode

    @property
    def is_grouped(self) -> bool:
        """Whether the first dimension of the weight numbers groups."""
        return self._domain.type != enums.CommGroupType.All

    def groups_of(self, replicas: int) -> VariableGroups:
        """Return the groups among all replicas of a job.

        Raises:
            popart_exception: The size of a group does not divide the replicas.
        """
        kinds, kind, size = enums.CommGroupType, *astuple(self._domain)
        size = {kinds.All: replicas, kinds.Ungrouped: 1}.get(kind, size)
        if size < 1 or replicas % size:
            raise popart_exception(
                f"The replicaGroupSize is {size}, but must divide the {replicas} "
                "replicas of the job."
            )
        return VariableGroups(kind == kinds.Orthogonal, size, replicas // size)

    def returned_rows(self, replicas: int) -> list[int]:
        """Return the groups whose values readWeights() gives, one after the other."""
        groups = self.groups_of(replicas)
        if self._mode == Retrieval.AllReplicas:
            return [groups.group_of(replica) for replica in range(replicas)]
        return list(range(groups.count))

    def numReplicasReturningVariable(self, replicaCount: int) -> int:
        """Return how many values readWeights() gives."""
        return len(self.returned_rows(replicaCount))

    def getGroupRepresentative(self, group: int) -> int:
        """Return the first replica of a group."""
        consecutive = self._domain.type == enums.CommGroupType.Consecutive
        return group * self._domain.replicaGroupSize if consecutive else group


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
