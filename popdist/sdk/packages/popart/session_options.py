"""The options of a session, checked by name and type, and what replication follows.

Any: each option has the type of its default.
"""

import copy
import difflib
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

from popdist.replicated.settings import ReplicatedSettings

from . import enums, settings
from .errors import popart_exception

_OFF = """
    enableReplicatedGraphs enableDistributedReplicatedGraphs enableGradientAccumulation
    hostAllReduce hostWeightUpdate hostAllReduceRemoteBuffer

    enableFloatingPointChecks enableStochasticRounding enableNonStableSoftmax
    enableStableNorm groupNormStridedChannelGrouping ensureFp32LossScaleTensor

    enablePipelining explicitPipelining explicitRecomputation rearrangeStreamsOnHost
    disableGradAccumulationTensorStreams disableOptimizerStateTensorStreams
    enableEngineCaching aliasZeroCopy scheduleNonWeightUpdateGradientConsumersEarly
    enableGroupedMatmuls decomposeGradSum groupHostSync opxAliasChecking
    opxModifyChecking useHostCopyOps useLoopCandidateCreator enableExplicitMainLoops
    enableLoadAndOffloadRNGState enableInplaceAmbiguityChecking
    createImplicitPipeliningFwdOnlyProgram

    dotOpNames exportPoplarComputationGraph exportPoplarVertexGraph
    instrumentWithHardwareCycleCounter
"""
_ON = """
    constantWeights enableSupportedDataTypeCasting enableOutlining
    enableOutliningCopyCostPruning rearrangeAnchorsOnHost enablePrefetchDatastreams
    compileEngine delayVarUpdates enableFullyConnectedPass enableSerializedMatmuls
    strictOpVersions enableMergeExchange separateCallOpPdfs
"""
_TEXTS = """
    partialsTypeMatMuls serializedPoprithmsShiftGraphsDir customCodeletCompileFlags
    serializedPoprithmsAnnealGraphsDir logDir
"""
_MAPPINGS = """
    tensorLocationSettingsOverride bufferingDepthMap prefetchBufferingDepthMap
    engineOptions convolutionOptions lstmOptions matmulOptions reportOptions gclOptions
"""
_LOCATIONS = """
    activationTensorLocationSettings weightTensorLocationSettings
    optimizerStateTensorLocationSettings accumulatorTensorLocationSettings
"""
# All options. Each SessionOptions has a copy.
_DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(_OFF.split(), False),
    **dict.fromkeys(_ON.split(), True),
    **dict.fromkeys(_TEXTS.split(), ""),
    **{name: {} for name in _MAPPINGS.split()},
    **{name: settings.TensorLocationSettings() for name in _LOCATIONS.split()},
    "replicatedGraphCount": 1,
    "globalReplicationFactor": 1,
    "globalReplicaOffset": 0,
    "accumulationFactor": 1,
    "accumulationAndReplicationReductionType": enums.ReductionType.Sum,
    "meanAccumulationAndReplicationReductionStrategy": enums.MeanReductionStrategy.Post,
    "replicatedCollectivesSettings": settings.ReplicatedCollectivesSettings(),
    "syntheticDataMode": enums.SyntheticDataMode.Off,
    "automaticLossScalingSettings": settings.AutomaticLossScalingSettings(),
    "virtualGraphMode": enums.VirtualGraphMode.Off,
    "executionPhaseSettings": settings.ExecutionPhaseSettings(),
    "batchSerializationSettings": settings.BatchSerializationSettings(),
    "accumulateOuterFragmentSettings": settings.AccumulateOuterFragmentSettings(),
    "autodiffSettings": settings.AutodiffSettings(),
    "developerSettings": settings.DeveloperSettings(),
    "numIOTiles": 0,
    "autoRecomputation": enums.RecomputationType.NoRecompute,
    "mergeVarUpdate": enums.MergeVarUpdateType.Off,
    "mergeVarUpdateMemThreshold": 1000000,
    "looseThresholdAtPeak": 8000,
    "subgraphCopyingStrategy": enums.SubgraphCopyingStrategy.OnEnterAndExit,
    "outlineThreshold": 1.0,
    "outlineSequenceBreakCost": 10000.0,
    "defaultBufferingDepth": 1,
    "defaultPrefetchBufferingDepth": 1,
    "cachePath": "session_cache",
    "timeLimitScheduler": 1e9,
    "swapLimitScheduler": 1000000000,
    "kahnTieBreaker": "greedy",
    "transitiveClosureOptimizationThreshold": 100000,
    "customCodelets": [],
    "dotChecks": set(),
    "firstDotOp": 0,
    "finalDotOp": 10000,
    "hardwareInstrumentations": set(),
    # A function, or None.
    "compilationProgressLogger": None,
    "compilationProgressTotal": 100,
}


class SessionOptions(SimpleNamespace):
    """The options of a session.

    Options for memory, scheduling and compiling are recorded and change nothing:
    nothing is compiled here.
    """

    def __init__(self) -> None:
        super().__init__(**copy.deepcopy(_DEFAULTS))

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _DEFAULTS:
            raise AttributeError(_unknown(name), name=name, obj=self)
        if not _fits(value, _DEFAULTS[name]):
            kind = type(_DEFAULTS[name]).__name__
            raise TypeError(f"SessionOptions.{name} is {value!r}, but must be {kind}.")
        super().__setattr__(name, value)

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


def replicated_settings(
    options: SessionOptions, batches_per_step: int, training: bool
) -> ReplicatedSettings:
    """Return the replicas and micro-batches of one call, from checked options.

    Raises:
        popart_exception: The options do not fit together.
    """
    accumulation = options.accumulationFactor
    reduction = options.accumulationAndReplicationReductionType
    _check_distributed(options)
    if options.enableReplicatedGraphs:
        _check_least(options, "replicatedGraphCount", 1)
    _check_least(options, "accumulationFactor", 1)
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
    if reduction == enums.ReductionType.NoReduction:
        raise popart_exception(
            "accumulationAndReplicationReductionType is NoReduction, but gradients "
            "have to be reduced. Set it to ReductionType.Sum or ReductionType.Mean."
        )
    return ReplicatedSettings(
        device_iterations=batches_per_step,
        gradient_accumulation=accumulation,
        replicas=options.replicatedGraphCount if options.enableReplicatedGraphs else 1,
        mean=reduction == enums.ReductionType.Mean,
    )


def _check_least(options: SessionOptions, name: str, least: int) -> None:
    value = getattr(options, name)
    if value < least:
        raise popart_exception(
            f"Invalid {name} value: {value}, must be greater or equal than {least}"
        )


def _check_distributed(options: SessionOptions) -> None:
    """Raise popart_exception if the replicas of all instances do not fit together."""
    if not options.enableDistributedReplicatedGraphs:
        return
    _check_least(options, "globalReplicationFactor", 1)
    _check_least(options, "globalReplicaOffset", 0)
    total, offset = options.globalReplicationFactor, options.globalReplicaOffset
    local = options.replicatedGraphCount
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
