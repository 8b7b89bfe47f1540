"""PopART's enumerations, numbered as in PopART.

Programs for PopTorch set options of PopART by number, such as
`int(popart.SyntheticDataMode.RandomNormal)`.
"""

from enum import IntEnum

# How the weight updates of several IPUs are scheduled.
AccumulateOuterFragmentSchedule = IntEnum(
    "AccumulateOuterFragmentSchedule",
    "Scheduler Serial OverlapCycleOptimized OverlapMemoryOptimized",
    start=0,
)
# The variant of Adam that updates the weights.
AdamMode = IntEnum("AdamMode", "Adam AdamNoBias AdaMax Lamb LambNoBias", start=0)
# The variant of the Adaptive optimizer that updates the weights.
AdaptiveMode = IntEnum(
    "AdaptiveMode", "AdaGrad RMSProp CenteredRMSProp AdaDelta", start=0
)
# The batches of a step that an anchor holds values for.
AnchorReturnTypeId = IntEnum("AnchorReturnTypeId", "Final EveryN All Sum", start=0)
# The recomputation in the backward pass of a subgraph.
AutodiffStitchStrategy = IntEnum(
    "AutodiffStitchStrategy",
    "RecomputeMinimal RecomputeAllNonInputs AddFwdOutputs SafeAddFwdOutputs",
    start=0,
)
# In which order the parts of a serialised batch run.
BatchSerializationBatchSchedule = IntEnum(
    "BatchSerializationBatchSchedule",
    "Scheduler Isomorphic OverlapOnIo OverlapOnCompute",
    start=0,
)
# How a batch is serialised.
BatchSerializationMethod = IntEnum(
    "BatchSerializationMethod", "UnrollDynamic UnrollStatic Loop", start=0
)
# When a batch is serialised.
BatchSerializationTransformContext = IntEnum(
    "BatchSerializationTransformContext", "Fwd Bwd", start=0
)
# The replicas of a collective operation.
CommGroupType = IntEnum(
    "CommGroupType", "All Consecutive Orthogonal Ungrouped", start=0
)
# The types of the elements of tensors.
DataType = IntEnum(
    "DataType",
    "UINT8 INT8 UINT16 INT16 INT32 INT64 UINT32 UINT64 BOOL FLOAT FLOAT16 BFLOAT16 "
    "DOUBLE COMPLEX64 COMPLEX128 STRING UNDEFINED",
    start=0,
)
# When a process attaches to its device.
DeviceConnectionType = IntEnum("DeviceConnectionType", "Always OnDemand Never", start=0)
# The choice among several devices.
DeviceSelectionCriterion = IntEnum("DeviceSelectionCriterion", "First Random", start=0)
# The kind of a session's device.
DeviceType = IntEnum("DeviceType", "IpuModel Cpu Ipu OfflineIpu Sim", start=0)
# After which stage of compiling the graph is written to a .dot file.
DotCheck = IntEnum("DotCheck", "Fwd0 Fwd1 Bwd0 PreAlias Final", start=0)
# When inputs and anchors are exchanged with the host.
ExchangeStrategy = IntEnum(
    "ExchangeStrategy", "JustInTime OverlapInnerLoop OverlapLoops OverlapStep", start=0
)
# When an execution phase loads its tensors.
ExecutionPhaseIOSchedule = IntEnum(
    "ExecutionPhaseIOSchedule", "Preload OnDemand", start=0
)
# In which order an execution phase updates its weights.
ExecutionPhaseSchedule = IntEnum(
    "ExecutionPhaseSchedule", "Interleaving Batch BatchClusteredIO", start=0
)
# The gradients that automatic loss scaling watches.
GradientTensorTrackingMethod = IntEnum(
    "GradientTensorTrackingMethod",
    "AllNonViewChangingGradientTensors ConvAndMatmulGradients "
    "GradientsOfUserSpecifiedTensors",
    start=0,
)
# The values in a tensor of the operator `init`.
InitType = IntEnum("InitType", "NoInit Zero", start=0)
# The loop that cycles are counted for.
Instrumentation = IntEnum("Instrumentation", "Outer Inner", start=0)
# How a graph is written.
IrSerializationFormat = IntEnum("IrSerializationFormat", "JSON", start=0)
# When a mean of gradients is divided.
MeanReductionStrategy = IntEnum(
    "MeanReductionStrategy", "Running Post PostAndLoss", start=0
)
# The merging of weight updates.
MergeVarUpdateType = IntEnum(
    "MergeVarUpdateType", "Off All AutoLoose AutoTight", start=0
)
# How many patterns the compiler applies.
PatternsLevel = IntEnum("PatternsLevel", "NoPatterns Minimal Default All", start=0)
# The activations that the backward pass recomputes.
RecomputationType = IntEnum(
    "RecomputationType", "NoRecompute Standard NormOnly Pipeline RecomputeAll", start=0
)
# Whether the backward pass recomputes what one operator yields.
RecomputeType = IntEnum(
    "RecomputeType", "Undefined Checkpoint Recompute Recomputed", start=0
)
# How losses and gradients are reduced.
ReductionType = IntEnum("ReductionType", "Sum Mean NoReduction", start=0)
# Whether each replica stores a part of a tensor, or all of it.
ReplicatedTensorSharding = IntEnum("ReplicatedTensorSharding", "Off On", start=0)
# How values that are scattered to one place are reduced.
ScatterReduction = IntEnum("ScatterReduction", "Sum", start=0)
# How SGD stores gradients and momenta.
SGDAccumulatorAndMomentum = IntEnum(
    "SGDAccumulatorAndMomentum", "Combined Separate", start=0
)
# When the inputs and outputs of a subgraph are copied.
SubgraphCopyingStrategy = IntEnum(
    "SubgraphCopyingStrategy", "OnEnterAndExit JustInTime", start=0
)
# How the IPUs of a replica are synchronised.
SyncPattern = IntEnum("SyncPattern", "Full SinglePipeline ReplicaAndLadder", start=0)
# The inputs in place of the program's data.
SyntheticDataMode = IntEnum("SyntheticDataMode", "Off Zeros RandomNormal", start=0)
# In which memory a tensor is.
TensorStorage = IntEnum("TensorStorage", "OffChip OnChip", start=0)
# The tiles that compute, or exchange with the host.
TileSet = IntEnum("TileSet", "Compute IO", start=0)
# The replicas whose values of a weight are read from the device.
VariableRetrievalMode = IntEnum(
    "VariableRetrievalMode", "OnePerGroup AllReduceReplicas AllReplicas", start=0
)
# How operations are put on IPUs.
VirtualGraphMode = IntEnum(
    "VirtualGraphMode", "Off Manual Auto ExecutionPhases", start=0
)
# Whether weights decay by themselves, or by their gradients.
WeightDecayMode = IntEnum("WeightDecayMode", "Decay L2Regularization", start=0)
