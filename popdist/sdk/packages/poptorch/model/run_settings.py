"""The options that an executor reads, checked once."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from popdist.popdist_core import getNumIpusPerReplica, isPopdistEnvSet
from popdist.replicated.settings import ReplicatedSettings

from ..annotations import is_pipeline
from ..autocasting import CastRules
from ..enums import CommGroupType, OutputMode, ReductionType
from ..errors import Error
from ..options import Options
from ..options.strategies import PipelinedExecution, _IExecutionStrategy

# When automatic loss scaling halves its factor, by the names and defaults of PopART.
_LOSS_SCALING = {
    # Gradients above this part of the largest float16 are large.
    "binEdgeLocation": 0.125,
    # The proportion of large gradients above which the factor is halved.
    "thresholdUpperCountProportion": 1e-7,
    "updatePeriod": 1,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSettings(ReplicatedSettings):
    """The micro-batches of one call, their replicas, and the outputs."""

    training: bool
    output_mode: OutputMode = OutputMode.Final
    output_period: int = 1
    broadcast_buffers: bool = True
    # None where the options set none.
    random_seed: int | None = None
    # Whether an operation that yields no number raises.
    float_checks: bool = False
    # None without automatic casts.
    cast_rules: CastRules | None = None
    # None without automatic loss scaling.
    loss_scaling: Mapping[str, float] | None = None
    # Not in the repr, which makes the key of a model in the executable cache.
    strategy: _IExecutionStrategy = field(
        default_factory=PipelinedExecution, repr=False
    )
    # How many IPUs a replica has; None for any number.
    ipus_per_replica: int | None = None

    @classmethod
    def of(cls, options: Options, training: bool) -> Self:
        """Read the options.

        Raises:
            Error: They ask for what no model of this kind can do.
        """
        accumulation = options.Training.gradient_accumulation
        if not training and accumulation != 1:
            raise _accumulation_refused(options)
        mode = OutputMode(options.output_mode)
        if mode == OutputMode.Default:
            mode = OutputMode.Final if training else OutputMode.All
        distributed, precision = options.Distributed, options.Precision
        return cls(
            training=training,
            device_iterations=options.device_iterations,
            gradient_accumulation=accumulation,
            replicas=options.replication_factor,
            input_group_size=options.input_group_size,
            consecutive_groups=options.input_group_type != CommGroupType.Orthogonal,
            instances=distributed.numProcesses,
            instance=distributed.processId,
            mean=options.Training.accumulation_and_replication_reduction_type
            != ReductionType.Sum,
            output_mode=mode,
            output_period=options.output_return_period,
            broadcast_buffers=options.broadcast_buffers,
            random_seed=options.random_seed if options.exists("random_seed") else None,
            float_checks=bool(options._Popart.options.get("enableFloatingPointChecks")),
            cast_rules=CastRules(
                precision.autocast_policy, precision.half_float_casting
            )
            if precision.autocast_enabled
            else None,
            loss_scaling=_loss_scaling(options._Popart.options),
            strategy=options._execution_strategy,
            ipus_per_replica=getNumIpusPerReplica() if isPopdistEnvSet() else None,
        )


# Any: each option has another type.
def _loss_scaling(popart: Mapping[str, Any]) -> dict[str, float] | None:
    prefix = "automaticLossScalingSettings."
    if not popart.get(f"{prefix}enabled"):
        return None
    return {
        name: popart.get(f"{prefix}{name}", default)
        for name, default in _LOSS_SCALING.items()
    }


def _accumulation_refused(options: Options) -> Error:
    text = (
        "You must set poptorch.Options().Training.gradientAccumulation to 1 or leave "
        "it as its default value (1) when running a poptorch.inferenceModel()."
    )
    if is_pipeline(options._execution_strategy):
        text += (
            " Use poptorch.Options().deviceIterations to process a sufficient number "
            "of batches each run for pipelined execution instead."
        )
    return Error(text)
