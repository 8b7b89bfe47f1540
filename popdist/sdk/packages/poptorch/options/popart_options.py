"""Options of PopART by their names: most have no use on a CPU, and are recorded."""

from collections.abc import Mapping
from typing import Any, Self

from ..errors import Error, require_type
from .option_values import Freezable

# The names that PopTorch takes.
_NAMES = """
accumulateOuterFragmentSettings.excludedVirtualGraphs
accumulateOuterFragmentSettings.schedule accumulationAndReplicationReductionType
accumulationFactor aliasZeroCopy autoRecomputation autodiffSettings.stitchStrategy
automaticLossScalingSettings.binEdgeLocation automaticLossScalingSettings.enabled
automaticLossScalingSettings.gradientTensorTrackingMethod
automaticLossScalingSettings.thresholdUpperCountProportion
automaticLossScalingSettings.updatePeriod batchSerializationSettings.batchSchedule
batchSerializationSettings.concatOnExecutionPhaseChange
batchSerializationSettings.concatOnPipelineStageChange
batchSerializationSettings.concatOnVirtualGraphChange
batchSerializationSettings.factor batchSerializationSettings.method
batchSerializationSettings.transformContext cachePath compilationProgressTotal
compileEngine constantWeights convolutionOptions customCodeletCompileFlags
customCodelets decomposeGradSum defaultBufferingDepth defaultPrefetchBufferingDepth
delayVarUpdates disableGradAccumulationTensorStreams
disableOptimizerStateTensorStreams dotChecks dotOpNames
enableDistributedReplicatedGraphs enableEngineCaching enableExplicitIR
enableExplicitMainLoops enableFloatingPointChecks enableFullyConnectedPass
enableGradientAccumulation enableInplaceAmbiguityChecking
enableLoadAndOffloadRNGState enableMergeExchange enableNonStableSoftmax
enableOutlining enableOutliningCopyCostPruning enablePipelining
enablePrefetchDatastreams enableReplicatedGraphs enableSerializedMatmuls
enableStableNorm enableStochasticRounding enableSupportedDataTypeCasting
engineOptions ensureFp32LossScaleTensor executionPhaseSettings.phases
executionPhaseSettings.stages explicitRecomputation exportPoplarComputationGraph
exportPoplarVertexGraph finalDotOp firstDotOp gclOptions globalReplicaOffset
globalReplicationFactor groupHostSync groupNormStridedChannelGrouping
hardwareInstrumentations instrumentWithHardwareCycleCounter kahnTieBreaker logDir
looseThresholdAtPeak lstmOptions matmulOptions
meanAccumulationAndReplicationReductionStrategy mergeVarUpdate
mergeVarUpdateMemThreshold numIOTiles opxAliasChecking opxModifyChecking
outlineSequenceBreakCost outlineThreshold partialsTypeMatMuls patterns
patterns_level rearrangeAnchorsOnHost rearrangeStreamsOnHost
replicatedCollectivesSettings.mergeAllReduceCollectives
replicatedCollectivesSettings.prepareScheduleForMergingCollectives reportOptions
saveInitializersToFile scheduleNonWeightUpdateGradientConsumersEarly
separateCallOpPdfs serializedPoprithmsShiftGraphsDir strictOpVersions
subgraphCopyingStrategy swapLimitScheduler syntheticDataMode timeLimitScheduler
transitiveClosureOptimizationThreshold updatableNamedBuffers useHostCopyOps
virtualGraphMode
"""
_KNOWN = frozenset(_NAMES.split())
_TYPES = (bool, int, float, str, list, tuple, set, dict)


# Any: each option has another type.
def check_options(options: Mapping[str, Any]) -> None:
    """Raise Error if an option is none of PopART's, or its value is of no type there.

    A misspelt option would have no effect on the compiled model.
    """
    for name, value in options.items():
        if name not in _KNOWN:
            raise Error(
                f"Unknown PopART option {name}. Give Options._Popart.set() the name of "
                "one of PopART's session options, as in "
                '_Popart.set("autoRecomputation", 3).'
            )
        if not isinstance(value, _TYPES):
            raise Error(
                f"Unknown value type {type(value).__name__} for option {name}. Give a "
                "bool, a number, a string, or a list or dictionary of them."
            )


class _PopartOptions(Freezable):
    """Options by the names of PopART's session options."""

    def __init__(self) -> None:
        self._is_frozen = False
        self.options: dict[str, Any] = {
            "instrumentWithHardwareCycleCounter": False,
            "rearrangeAnchorsOnHost": False,
        }

    def set(self, key: str, value: Any) -> Self:
        """Record one option; PopART's enums are given as numbers.

        Compiling a model raises Error for a name that PopART does not have.
        """
        self.checkIsFrozen()
        self.options[key] = value
        return self

    def setEngineOptions(self, engine_options: dict[str, str]) -> Self:
        """Record the options of Poplar's engine."""
        return self.set("engineOptions", engine_options)

    def setForConvolutions(self, name: str, value: Any) -> Self:
        """Record one of the options of convolutions, and keep the others."""
        others = self.options.get("convolutionOptions", {})
        return self.set("convolutionOptions", {**others, name: value})

    def setPatterns(self, patterns: dict[str, bool], level: int = 2) -> Self:
        """Record the patterns and the level for PopART's compiler."""
        require_type("level", level, int)
        require_type("patterns", patterns, dict)
        self.set("patterns_level", level)
        return self.set("patterns", patterns)

    def __repr__(self) -> str:
        body = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        return f"{type(self).__name__}({body})"
