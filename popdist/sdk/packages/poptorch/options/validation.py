"""Checks and logs all options, as a model's compiler gets them in one dictionary."""

import logging
from typing import Any

from .._logging import logger
from ..errors import Error

# Of PopTorch, beside those that options have from the start.
OPTIONAL = """
execution_mode ipu_id ipu_version location_accumulator location_activation
location_optimizer location_weight model_name numIOTiles patterns patterns_level
random_seed running_statistics_always_float separate_backward_phase
serial_phases_execution tensors_liveness updatable_named_buffers use_model
"""
# Of PopART: those that PopTorch passes on. None has an effect on a CPU.
POPART = """
accumulateOuterFragmentSettings.excludedVirtualGraphs
accumulateOuterFragmentSettings.schedule accumulationAndReplicationReductionType
accumulationFactor aliasZeroCopy autoRecomputation autodiffSettings.stitchStrategy
automaticLossScalingSettings.binEdgeLocation automaticLossScalingSettings.enabled
automaticLossScalingSettings.gradientTensorTrackingMethod
automaticLossScalingSettings.thresholdUpperCountProportion
automaticLossScalingSettings.updatePeriod batchSerializationSettings.batchSchedule
batchSerializationSettings.concatOnExecutionPhaseChange
batchSerializationSettings.concatOnPipelineStageChange
batchSerializationSettings.concatOnVirtualGraphChange batchSerializationSettings.factor
batchSerializationSettings.method batchSerializationSettings.transformContext cachePath
compileEngine constantWeights convolutionOptions customCodeletCompileFlags
customCodelets decomposeGradSum defaultBufferingDepth defaultPrefetchBufferingDepth
delayVarUpdates disableGradAccumulationTensorStreams disableOptimizerStateTensorStreams
dotChecks dotOpNames enableConstantFoldingOfMultipleConsumers
enableDistributedReplicatedGraphs enableEngineCaching enableExplicitIR
enableExplicitMainLoops enableFloatingPointChecks enableFullyConnectedPass
enableGradientAccumulation enableGroupedMatmuls enableInplaceAmbiguityChecking
enableLoadAndOffloadRNGState enableMergeExchange enableNonStableSoftmax enableOutlining
enableOutliningCopyCostPruning enablePipelining enablePrefetchDatastreams
enableReplicatedGraphs enableSerializedMatmuls enableStableNorm enableStochasticRounding
enableSupportedDataTypeCasting engineOptions executionPhaseSettings.activationIOSchedule
executionPhaseSettings.accumulatorIOSchedule executionPhaseSettings.phases
executionPhaseSettings.schedule executionPhaseSettings.stages
executionPhaseSettings.weightIOSchedule explicitRecomputation
exportPoplarComputationGraph exportPoplarVertexGraph finalDotOp firstDotOp gclOptions
globalReplicaOffset globalReplicationFactor groupHostSync
groupNormStridedChannelGrouping hardwareInstrumentations hostAllReduce
hostAllReduceRemoteBuffer hostWeightUpdate instrumentWithHardwareCycleCounter
kahnTieBreaker logDir looseThresholdAtPeak lstmOptions matmulOptions mergeVarUpdate
mergeVarUpdateMemThreshold numIOTiles opxAliasChecking opxModifyChecking
outlineSequenceBreakCost outlineThreshold partialsTypeMatMuls rearrangeAnchorsOnHost
rearrangeStreamsOnHost replicatedCollectivesSettings.mergeAllGatherCollectives
replicatedCollectivesSettings.mergeAllReduceCollectives
replicatedCollectivesSettings.mergeReduceScatterCollectives
replicatedCollectivesSettings.prepareScheduleForMergingCollectives reportOptions
saveInitializersToFile scheduleNonWeightUpdateGradientConsumersEarly separateCallOpPdfs
serializedPoprithmsShiftGraphsDir strictOpVersions subgraphCopyingStrategy
swapLimitScheduler syntheticDataMode timeLimitScheduler updatableNamedBuffers
virtualGraphMode
"""


# Any: each option has a type of its own.
def check(values: dict[str, Any], defaults: dict[str, Any]) -> None:
    """Raise Error if a name is that of no option, or a value of no type of options.

    Args:
        values: All options, as Options.toDict returns them.
        defaults: Those that options have from the start.
    """
    known = {*defaults, *OPTIONAL.split(), *POPART.split()}
    for name, value in values.items():
        if name not in known:
            raise Error(
                f"Unknown PopART option {name}: Options._Popart.set has set it, but it "
                "is none of PopART's session options that PopTorch knows."
            )
        if not isinstance(
            value, bool | int | float | str | list | tuple | set | dict | None
        ):
            raise Error(
                f"Unknown value type {type(value)} for option {name}: it must be a "
                "bool, a number, a string, or a collection of these."
            )


def log(values: dict[str, Any]) -> None:
    """Log each option at level debug."""
    if not logger.isEnabledFor(logging.DEBUG):
        return
    for name, value in values.items():
        if isinstance(value, dict):
            for key, each in value.items():
                logger.debug("poptorch.Options set %s[%s] to %s", name, key, each)
        elif isinstance(value, list | tuple | set):
            for each in value:
                logger.debug("poptorch.Options added %s to %s", each, name)
        else:
            text = str(value).lower() if isinstance(value, bool) else value
            logger.debug("poptorch.Options set %s to value %s", name, text)
