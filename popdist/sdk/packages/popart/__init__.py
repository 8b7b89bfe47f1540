"""A stand-in for popart: the enumerations that programs give to PopTorch's options.

Programs for PopTorch set options of PopART by number, such as
`int(popart.SyntheticDataMode.RandomNormal)`. Nothing is compiled or run here.
"""

from enum import IntEnum
from typing import NoReturn


class AccumulateOuterFragmentSchedule(IntEnum):
    """How the weight updates of several IPUs are scheduled."""

    Scheduler = 0
    Serial = 1
    OverlapCycleOptimized = 2
    OverlapMemoryOptimized = 3


class DotCheck(IntEnum):
    """After which stage of compiling the graph is written to a .dot file."""

    Fwd0 = 0
    Fwd1 = 1
    Bwd0 = 2
    PreAlias = 3
    Final = 4


class Instrumentation(IntEnum):
    """Which loop cycles are counted for."""

    Outer = 0
    Inner = 1


class MeanReductionStrategy(IntEnum):
    """When a mean of gradients is divided."""

    Running = 0
    Post = 1


class MergeVarUpdateType(IntEnum):
    """Which updates of weights are merged."""

    Off = 0
    All = 1
    AutoLoose = 2
    AutoTight = 3


class PatternsLevel(IntEnum):
    """How many patterns the compiler applies."""

    NoPatterns = 0
    Minimal = 1
    Default = 2
    All = 3


class RecomputationType(IntEnum):
    """Which activations are recomputed in the backward pass."""

    NoRecompute = 0
    Standard = 1
    NormOnly = 2
    Pipeline = 3
    RecomputeAll = 4


class SubgraphCopyingStrategy(IntEnum):
    """When the inputs and outputs of a subgraph are copied."""

    OnEnterAndExit = 0
    JustInTime = 1


class SyncPattern(IntEnum):
    """How the IPUs of a replica are synchronised."""

    Full = 0
    SinglePipeline = 1
    ReplicaAndLadder = 2


class SyntheticDataMode(IntEnum):
    """What inputs are made of instead of the program's data."""

    Off = 0
    Zeros = 1
    RandomNormal = 2


class VirtualGraphMode(IntEnum):
    """How operations are put on IPUs."""

    Off = 0
    Manual = 1
    Auto = 2
    ExecutionPhases = 3


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(
        f"popdist's stand-in for popart has no {name}: it has the enumerations that "
        "PopTorch's options take, and cannot build or run a graph. A model written "
        "for PopTorch runs on the CPU.",
        name=name,
    )
