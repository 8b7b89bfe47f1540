"""The values of options and ops, with PopTorch's numbers."""

import enum


class MeanReductionStrategy(enum.IntEnum):
    """When a mean of gradients is divided."""

    Running = 0
    Post = 1
    PostAndLoss = 2


class DataLoaderMode(enum.IntEnum):
    """Where batches are loaded.

    Sync: in the process that asks for them.
    Async: ahead, in another process.
    AsyncRebatched: ahead, in batches of the samples of all workers.
    """

    Sync = 0
    Async = 1
    AsyncRebatched = 2


class SharingStrategy(enum.IntEnum):
    """How the worker that loads ahead starts, and how it gets the data set.

    SharedMemory: a new process; the data set through shared memory.
    FileSystem: a new process; the data set through a file.
    Fork: a fork of this process, which has the data set.
    ForkServer: a fork of a process that has no threads; the data set through shared
    memory.
    """

    SharedMemory = 0
    FileSystem = 1
    Fork = 2
    ForkServer = 3


class OutputMode(enum.IntEnum):
    """The results of a call that are returned."""

    Final = 0
    EveryN = 1
    All = 2
    Sum = 3
    # All for inference, Final for training.
    Default = 4


# Its name in older releases.
AnchorMode = OutputMode


class ConnectionType(enum.IntEnum):
    """When a model attaches to its device."""

    Always = 0
    OnDemand = 1
    Never = 2


class HalfFloatCastingBehavior(enum.IntEnum):
    """The type for the inputs of an operation with float16 and float32."""

    FloatDowncastToHalf = 0
    HalfUpcastToFloat = 1
    Default = 2


class ReductionType(enum.IntEnum):
    """How values are reduced to one."""

    Sum = 0
    Mean = 1
    NoReduction = 2


class SyncPattern(enum.IntEnum):
    """The IPUs that synchronise with each other."""

    Full = 0
    SinglePipeline = 1
    ReplicaAndLadder = 2


class MatMulSerializationMode(enum.Enum):
    """Along which dimension a matrix product is serialised."""

    InputChannels = "input_channels"
    ReducingDim = "reducing_dim"
    OutputChannels = "output_channels"
    Disabled = "none"


class Liveness(enum.IntEnum):
    """How long tensors of a phase stay on the chip."""

    AlwaysLive = 0
    OffChipAfterFwd = 1
    OffChipAfterFwdNoOverlap = 2
    OffChipAfterEachPhase = 3


class OverlapMode(enum.Enum):
    """With what copies of inputs and outputs overlap."""

    NoOverlap = "no_overlap"
    OverlapAccumulationLoop = "overlap_accumulation_loop"
    OverlapDeviceIterationLoop = "overlap_device_iteration_loop"


class AutoStage(enum.IntEnum):
    """How blocks get the number of their stage: their IPU's stage, or the next one."""

    SameAsIpu = 0
    AutoIncrement = 1


class MultiConvPlanType(enum.IntEnum):
    """Whether the convolutions of a MultiConv run at once."""

    Parallel = 0
    Serial = 1


class CommGroupType(enum.IntEnum):
    """The replicas that share an input, or the value of a weight."""

    All = 0
    Consecutive = 1
    Orthogonal = 2
    NoGrouping = 3


class Compiler(enum.IntEnum):
    """The compiler of graphs for IPUs: without effect."""

    PopART = 0
    MLIR = 1


class VariableRetrievalMode(enum.IntEnum):
    """The replicas that the values of a grouped weight are read from."""

    OnePerGroup = 0
    AllReplicas = 2
