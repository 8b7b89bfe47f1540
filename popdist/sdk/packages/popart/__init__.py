"""A stand-in for popart: the enumerations that programs give to PopTorch's options.

Programs for PopTorch set options of PopART by number, such as
`int(popart.SyntheticDataMode.RandomNormal)`. Nothing is compiled or run here.
"""

from enum import IntEnum
from typing import NoReturn

# How the weight updates of several IPUs are scheduled.
AccumulateOuterFragmentSchedule = IntEnum(
    "AccumulateOuterFragmentSchedule",
    "Scheduler Serial OverlapCycleOptimized OverlapMemoryOptimized",
    start=0,
)
# After which stage of compiling the graph is written to a .dot file.
DotCheck = IntEnum("DotCheck", "Fwd0 Fwd1 Bwd0 PreAlias Final", start=0)
# Which loop cycles are counted for.
Instrumentation = IntEnum("Instrumentation", "Outer Inner", start=0)
# When a mean of gradients is divided.
MeanReductionStrategy = IntEnum("MeanReductionStrategy", "Running Post", start=0)
# Which updates of weights are merged.
MergeVarUpdateType = IntEnum(
    "MergeVarUpdateType", "Off All AutoLoose AutoTight", start=0
)
# How many patterns the compiler applies.
PatternsLevel = IntEnum("PatternsLevel", "NoPatterns Minimal Default All", start=0)
# Which activations are recomputed in the backward pass.
RecomputationType = IntEnum(
    "RecomputationType", "NoRecompute Standard NormOnly Pipeline RecomputeAll", start=0
)
# When the inputs and outputs of a subgraph are copied.
SubgraphCopyingStrategy = IntEnum(
    "SubgraphCopyingStrategy", "OnEnterAndExit JustInTime", start=0
)
# How the IPUs of a replica are synchronised.
SyncPattern = IntEnum("SyncPattern", "Full SinglePipeline ReplicaAndLadder", start=0)
# What inputs are made of instead of the program's data.
SyntheticDataMode = IntEnum("SyntheticDataMode", "Off Zeros RandomNormal", start=0)
# How operations are put on IPUs.
VirtualGraphMode = IntEnum(
    "VirtualGraphMode", "Off Manual Auto ExecutionPhases", start=0
)


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(
        f"popdist's stand-in for popart has no {name}: it has the enumerations that "
        "PopTorch's options take, and cannot build or run a graph. A model written "
        "for PopTorch runs on the CPU.",
        name=name,
    )
