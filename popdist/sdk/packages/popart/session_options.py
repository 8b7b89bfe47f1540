"""The options of a session, checked by name and type, and what replication follows.

Any: each option has the type of its default.
"""

import difflib
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import Any

from popdist.replicated.settings import ReplicatedSettings

from . import enums, settings
from .errors import popart_exception


@dataclass(slots=True)
class SessionOptions:
    """The options of a session.

    Options for memory, scheduling and compiling are recorded and change nothing:
    nothing is compiled here.
    """

    # Replicas, and the gradients that they accumulate.
    enableReplicatedGraphs: bool = False
    replicatedGraphCount: int = 1
    enableDistributedReplicatedGraphs: bool = False
    globalReplicationFactor: int = 1
    globalReplicaOffset: int = 0
    enableGradientAccumulation: bool = False
    accumulationFactor: int = 1
    accumulationAndReplicationReductionType: enums.ReductionType = (
        enums.ReductionType.Sum
    )
    meanAccumulationAndReplicationReductionStrategy: enums.MeanReductionStrategy = (
        enums.MeanReductionStrategy.Post
    )
    hostAllReduce: bool = False
    hostWeightUpdate: bool = False
    hostAllReduceRemoteBuffer: bool = False
    replicatedCollectivesSettings: settings.ReplicatedCollectivesSettings = field(
        default_factory=settings.ReplicatedCollectivesSettings
    )
    # Numbers.
    syntheticDataMode: enums.SyntheticDataMode = enums.SyntheticDataMode.Off
    constantWeights: bool = True
    enableFloatingPointChecks: bool = False
    enableStochasticRounding: bool = False
    enableNonStableSoftmax: bool = False
    enableStableNorm: bool = False
    groupNormStridedChannelGrouping: bool = False
    partialsTypeMatMuls: str = ""
    enableSupportedDataTypeCasting: bool = True
    ensureFp32LossScaleTensor: bool = False
    automaticLossScalingSettings: settings.AutomaticLossScalingSettings = field(
        default_factory=settings.AutomaticLossScalingSettings
    )
    # Where tensors and operations are.
    virtualGraphMode: enums.VirtualGraphMode = enums.VirtualGraphMode.Off
    enablePipelining: bool = False
    explicitPipelining: bool = False
    executionPhaseSettings: settings.ExecutionPhaseSettings = field(
        default_factory=settings.ExecutionPhaseSettings
    )
    batchSerializationSettings: settings.BatchSerializationSettings = field(
        default_factory=settings.BatchSerializationSettings
    )
    accumulateOuterFragmentSettings: settings.AccumulateOuterFragmentSettings = field(
        default_factory=settings.AccumulateOuterFragmentSettings
    )
    autodiffSettings: settings.AutodiffSettings = field(
        default_factory=settings.AutodiffSettings
    )
    developerSettings: settings.DeveloperSettings = field(
        default_factory=settings.DeveloperSettings
    )
    activationTensorLocationSettings: settings.TensorLocationSettings = field(
        default_factory=settings.TensorLocationSettings
    )
    weightTensorLocationSettings: settings.TensorLocationSettings = field(
        default_factory=settings.TensorLocationSettings
    )
    optimizerStateTensorLocationSettings: settings.TensorLocationSettings = field(
        default_factory=settings.TensorLocationSettings
    )
    accumulatorTensorLocationSettings: settings.TensorLocationSettings = field(
        default_factory=settings.TensorLocationSettings
    )
    tensorLocationSettingsOverride: dict[str, settings.TensorLocation] = field(
        default_factory=dict
    )
    numIOTiles: int = 0
    # How the graph is compiled.
    autoRecomputation: enums.RecomputationType = enums.RecomputationType.NoRecompute
    explicitRecomputation: bool = False
    mergeVarUpdate: enums.MergeVarUpdateType = enums.MergeVarUpdateType.Off
    mergeVarUpdateMemThreshold: int = 1000000
    looseThresholdAtPeak: int = 8000
    subgraphCopyingStrategy: enums.SubgraphCopyingStrategy = (
        enums.SubgraphCopyingStrategy.OnEnterAndExit
    )
    enableOutlining: bool = True
    enableOutliningCopyCostPruning: bool = True
    outlineThreshold: float = 1.0
    outlineSequenceBreakCost: float = 10000.0
    rearrangeAnchorsOnHost: bool = True
    rearrangeStreamsOnHost: bool = False
    enablePrefetchDatastreams: bool = True
    defaultBufferingDepth: int = 1
    defaultPrefetchBufferingDepth: int = 1
    bufferingDepthMap: dict[str, int] = field(default_factory=dict)
    prefetchBufferingDepthMap: dict[str, int] = field(default_factory=dict)
    disableGradAccumulationTensorStreams: bool = False
    disableOptimizerStateTensorStreams: bool = False
    compileEngine: bool = True
    enableEngineCaching: bool = False
    cachePath: str = "session_cache"
    aliasZeroCopy: bool = False
    delayVarUpdates: bool = True
    scheduleNonWeightUpdateGradientConsumersEarly: bool = False
    enableFullyConnectedPass: bool = True
    enableSerializedMatmuls: bool = True
    enableGroupedMatmuls: bool = False
    decomposeGradSum: bool = False
    groupHostSync: bool = False
    strictOpVersions: bool = True
    opxAliasChecking: bool = False
    opxModifyChecking: bool = False
    useHostCopyOps: bool = False
    useLoopCandidateCreator: bool = False
    enableLoadAndOffloadRNGState: bool = False
    enableExplicitMainLoops: bool = False
    enableMergeExchange: bool = True
    enableInplaceAmbiguityChecking: bool = False
    createImplicitPipeliningFwdOnlyProgram: bool = False
    timeLimitScheduler: float = 1e9
    swapLimitScheduler: int = 1000000000
    kahnTieBreaker: str = "greedy"
    transitiveClosureOptimizationThreshold: int = 100000
    serializedPoprithmsShiftGraphsDir: str = ""
    serializedPoprithmsAnnealGraphsDir: str = ""
    engineOptions: dict[str, str] = field(default_factory=dict)
    convolutionOptions: dict[str, str] = field(default_factory=dict)
    lstmOptions: dict[str, str] = field(default_factory=dict)
    matmulOptions: dict[str, str] = field(default_factory=dict)
    reportOptions: dict[str, str] = field(default_factory=dict)
    gclOptions: dict[str, str] = field(default_factory=dict)
    customCodelets: list[str] = field(default_factory=list)
    customCodeletCompileFlags: str = ""
    # Reports.
    logDir: str = ""
    dotChecks: set[str] = field(default_factory=set)
    firstDotOp: int = 0
    finalDotOp: int = 10000
    dotOpNames: bool = False
    exportPoplarComputationGraph: bool = False
    exportPoplarVertexGraph: bool = False
    separateCallOpPdfs: bool = True
    instrumentWithHardwareCycleCounter: bool = False
    hardwareInstrumentations: set[enums.Instrumentation] = field(default_factory=set)
    compilationProgressLogger: Callable[[int, int], object] | None = None
    compilationProgressTotal: int = 100

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _DEFAULTS:
            raise AttributeError(_unknown(name), name=name, obj=self)
        if not _fits(value, _DEFAULTS[name]):
            kind = type(_DEFAULTS[name]).__name__
            raise TypeError(f"SessionOptions.{name} is {value!r}, but must be {kind}.")
        # object's own, because a class with slots is not the one that super() names.
        object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(_unknown(name), name=name, obj=self)


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, _DEFAULTS, 1)
    hint = f" Did you mean {near[0]}?" if near else ""
    return f"SessionOptions has no option {name}.{hint}"


def _fits(value: Any, default: Any) -> bool:
    """Return whether a value has the type of a default."""
    if default is None:
        return value is None or callable(value)
    if isinstance(default, IntEnum):
        return isinstance(value, type(default))
    if isinstance(default, float):
        return isinstance(value, int | float)
    if isinstance(default, set):
        return isinstance(value, set | list | tuple)
    return isinstance(value, int if isinstance(default, bool) else type(default))


_DEFAULTS: dict[str, Any] = {
    option.name: option.default_factory()
    if callable(option.default_factory)
    else option.default
    for option in fields(SessionOptions)
}


def replicated_settings(
    options: SessionOptions, batches_per_step: int, training: bool
) -> ReplicatedSettings:
    """Return the replicas and micro-batches of one call, from checked options.

    Raises:
        popart_exception: The options do not fit together.
    """
    _check_distributed(options)
    replicas = options.replicatedGraphCount if options.enableReplicatedGraphs else 1
    if replicas < 1:
        raise popart_exception(
            f"Invalid replicatedGraphCount value: {replicas}, must be greater or equal "
            "than 1"
        )
    accumulation = options.accumulationFactor
    if accumulation < 1:
        raise popart_exception(
            f"Invalid accumulationFactor value: {accumulation}, must be greater or "
            "equal than 1"
        )
    if accumulation > 1 and not options.enableGradientAccumulation:
        raise popart_exception(
            "enableGradientAccumulation is false, but accumulationFactor > 1. Either "
            "enable gradient accumulation or set the accumulation factor to 1"
        )
    if accumulation > 1 and not training:
        raise popart_exception(
            f"accumulationFactor is {accumulation}, but an InferenceSession "
            "accumulates no gradients. Set it to 1, and batchesPerStep of the "
            "DataFlow to the number of batches."
        )
    reduction = options.accumulationAndReplicationReductionType
    if reduction == enums.ReductionType.NoReduction:
        raise popart_exception(
            "accumulationAndReplicationReductionType is NoReduction, but gradients "
            "have to be reduced. Set it to ReductionType.Sum or ReductionType.Mean."
        )
    return ReplicatedSettings(
        device_iterations=batches_per_step,
        gradient_accumulation=accumulation,
        replicas=replicas,
        mean=reduction == enums.ReductionType.Mean,
    )


def _check_distributed(options: SessionOptions) -> None:
    """Raise popart_exception if the replicas of all instances do not fit together."""
    if not options.enableDistributedReplicatedGraphs:
        return
    total, offset = options.globalReplicationFactor, options.globalReplicaOffset
    local = options.replicatedGraphCount
    if total < 1:
        raise popart_exception(
            f"Invalid globalReplicationFactor value: {total}, must be greater or equal "
            "than 1"
        )
    if offset < 0:
        raise popart_exception(
            f"Invalid globalReplicaOffset value: {offset}, must be greater or equal "
            "than 0"
        )
    if offset > total:
        raise popart_exception(
            f"Global replica offset: {offset}, is larger than global replication "
            f"factor: {total}"
        )
    if not options.enableReplicatedGraphs:
        return
    if local == 1:
        raise popart_exception(
            "Local replicated graphs enabled but replication factor is 1"
        )
    if local > total:
        raise popart_exception(
            f"Invalid local replication factor: {local}, larger than global "
            f"replication factor: {total}"
        )
