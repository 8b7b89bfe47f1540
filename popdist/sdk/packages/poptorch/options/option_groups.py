"""The options that are about one subject: Options.Training and its like."""

import os
from typing import Self

import torch

from popdist import environment as env

from .. import autocasting
from .._logging import warn_deprecated
from ..enums import HalfFloatCastingBehavior, MeanReductionStrategy, ReductionType
from ..errors import require, require_poptorch, require_type, require_value
from .option_values import OptionValues
from .popart_options import _PopartOptions

FEWEST_TILES, MOST_TILES = 32, 192
PARTIALS = {torch.float32: "float", torch.float16: "half"}


class _DistributedOptions(OptionValues):
    """This process among the processes that train together."""

    def __init__(self) -> None:
        super().__init__(
            num_distributed_processes=1, distributed_process_id=0, ipuof_configs={}
        )
        _DistributedOptions.setEnvVarNames(self, env.OMPI_SIZE, env.OMPI_RANK)

    def disable(self) -> Self:
        """Make this the only process, whatever the environment has."""
        return self.set(num_distributed_processes=1, distributed_process_id=0)

    def setEnvVarNames(self, var_num_processes: str, var_process_id: str) -> Self:
        """Read the number of processes, and which this is, from these variables."""
        processes = int(os.environ.get(var_num_processes, "1"))
        process = int(os.environ.get(var_process_id, "0"))
        return _DistributedOptions.configureProcessId(self, process, processes)

    def configureProcessId(self, process_id: int, num_processes: int) -> Self:
        """Set which process this is, and how many there are."""
        return self.set(
            distributed_process_id=process_id, num_distributed_processes=num_processes
        )

    @property
    def processId(self) -> int:
        """The index of this process."""
        return int(self.distributed_process_id)

    @property
    def numProcesses(self) -> int:
        """How many processes there are."""
        return int(self.num_distributed_processes)


class _JitOptions(OptionValues):
    """How a model becomes a graph: recorded, as the CPU runs the model itself."""

    def traceModel(self, trace_model: bool) -> Self:
        """Record whether the model is traced by torch.jit.trace."""
        return self.set(trace_model=trace_model)


class _PrecisionOptions(OptionValues):
    """The operations in float16 and in float32.

    The types of a model's tensors decide, and automatic casts where the model asks for
    them. The rest is recorded, and has no effect on a CPU.
    """

    def __init__(self, popart_options: _PopartOptions) -> None:
        super().__init__(
            autocast_enabled=True,
            autocast_policy=autocasting.default,
            half_float_casting=HalfFloatCastingBehavior.Default,
        )
        self._popart_options = popart_options

    def autocastEnabled(self, autocast_enabled: bool) -> Self:
        """Set whether models that ask for automatic casts get them."""
        message = "autocastEnabled must be set to either True or False"
        require_value(isinstance(autocast_enabled, bool), message)
        return self.set(autocast_enabled=autocast_enabled)

    def autocastPolicy(self, autocast_policy: autocasting.Policy) -> Self:
        """Set the operations that automatic casts give float16 and float32."""
        require_value(
            isinstance(autocast_policy, autocasting.Policy),
            "autocastPolicy must be set to an instance of poptorch.autocasting.Policy",
        )
        return self.set(autocast_policy=autocast_policy)

    def halfFloatCasting(self, half_float_casting: HalfFloatCastingBehavior) -> Self:
        """Set the type for mixed inputs that torch refuses.

        By default to float16. It holds from the first region with automatic casts on.
        """
        require_value(
            isinstance(half_float_casting, HalfFloatCastingBehavior),
            "halfFloatCasting must be set to "
            "poptorch.HalfFloatCastingBehavior.FloatDowncastToHalf or "
            "poptorch.HalfFloatCastingBehavior.HalfUpcastToFloat or "
            "poptorch.Default",
        )
        return self.set(half_float_casting=half_float_casting)

    def runningStatisticsAlwaysFloat(self, value: bool) -> Self:
        """Record whether running statistics of batch norms are always float32."""
        message = "runningStatisticsAlwaysFloat needs to be set to a bool"
        require_value(isinstance(value, bool), message)
        return self.createOrSet(running_statistics_always_float=value)

    def enableFloatingPointExceptions(self, enabled: bool) -> Self:
        """Set whether an operation that yields infinity or no number raises."""
        message = "enableFloatingPointExceptions needs to be set to a bool"
        require(isinstance(enabled, bool), message)
        self._popart_options.set("enableFloatingPointChecks", enabled)
        return self

    def enableStochasticRounding(self, enabled: bool) -> Self:
        """Record whether the device rounds to float16 at random."""
        self._popart_options.set("enableStochasticRounding", enabled)
        return self

    def setPartialsType(self, dtype: torch.dtype) -> Self:
        """Record the type of partial sums in products and convolutions."""
        require_value(
            dtype in PARTIALS,
            "parameter to setPartialsType should be either torch.float or "
            f"torch.half, not {dtype}",
        )
        self._popart_options.set("partialsTypeMatMuls", PARTIALS[dtype])
        self._popart_options.setForConvolutions("partialsType", PARTIALS[dtype])
        return self


class TensorLocationSettings(OptionValues):
    """Where one kind of tensor is stored."""

    def minElementsForOffChip(self, min_elements: int) -> Self:
        """Record from which size on a tensor may be stored off the chip."""
        return self._record("minElementsForOffChip", min_elements, int)

    def minElementsForReplicatedTensorSharding(self, min_elements: int) -> Self:
        """Record from which size on replicas may share a tensor."""
        return self._record("minElementsForReplicatedTensorSharding", min_elements, int)

    def useOnChipStorage(self, use: bool | None = True) -> Self:
        """Record whether tensors are stored on the chip; None: it is left open."""
        if use is None:
            self.deleteIfExists("onChip")
            return self
        return self._record("onChip", use, bool)

    def useReplicatedTensorSharding(self, use: bool = True) -> Self:
        """Record whether each replica stores a part of each tensor."""
        return self._record("useReplicatedTensorSharding", use, bool)

    def useIOTilesToLoad(self, use: bool = True) -> Self:
        """Record whether IO tiles load tensors."""
        return self._record("useIOTilesToLoad", use, bool)

    def useIOTilesToStore(self, use: bool = True) -> Self:
        """Record whether IO tiles store tensors."""
        return self._record("useIOTilesToStore", use, bool)

    def _record(self, name: str, value: int, kind: type) -> Self:
        require_type(name, value, kind)
        return self.createOrSet(**{name: int(value)})


class _TensorLocationOptions(OptionValues):
    """Where each kind of tensor is stored: recorded only."""

    def numIOTiles(self, num_tiles: int) -> Self:
        """Record how many tiles of an IPU do IO instead of computing."""
        require(
            isinstance(num_tiles, int)
            and num_tiles in range(FEWEST_TILES, MOST_TILES + 1, 2),
            "numIOTiles must be an even number between 32 and 192.",
        )
        return self.createOrSet(numIOTiles=num_tiles)

    def setActivationLocation(self, location: TensorLocationSettings) -> Self:
        """Record where activations are stored."""
        return self._set_location("location_activation", location)

    def setWeightLocation(self, location: TensorLocationSettings) -> Self:
        """Record where weights are stored."""
        return self._set_location("location_weight", location)

    def setOptimizerLocation(self, location: TensorLocationSettings) -> Self:
        """Record where the optimizer's state is stored."""
        return self._set_location("location_optimizer", location)

    def setAccumulatorLocation(self, location: TensorLocationSettings) -> Self:
        """Record where accumulated gradients are stored."""
        return self._set_location("location_accumulator", location)

    def _set_location(self, name: str, location: TensorLocationSettings) -> Self:
        require_poptorch(location, TensorLocationSettings)
        return self.createOrSet(**{name: location.toDict()})


class _TrainingOptions(OptionValues):
    """How a step of training accumulates and reduces gradients.

    Recorded options have no effect on a CPU.
    """

    def __init__(self, popart_options: _PopartOptions) -> None:
        super().__init__(
            gradient_accumulation=1,
            accumulation_and_replication_reduction_type=ReductionType.Mean,
            meanAccumulationAndReplicationReductionStrategy=MeanReductionStrategy.Post,
        )
        self._popart_options = popart_options

    def gradientAccumulation(self, gradient_accumulation: int) -> Self:
        """Set over how many micro-batches a replica accumulates gradients."""
        return self.set(gradient_accumulation=gradient_accumulation)

    def accumulationAndReplicationReductionType(
        self, reduction_type: ReductionType
    ) -> Self:
        """Set whether gradients of micro-batches and replicas are summed or averaged.

        Raises:
            ValueError: It is neither Sum nor Mean.
        """
        require_value(
            isinstance(reduction_type, ReductionType)
            and reduction_type != ReductionType.NoReduction,
            "accumulationAndReplicationReductionType must be set to "
            "poptorch.ReductionType.Mean or poptorch.ReductionType.Sum",
        )
        return self.set(accumulation_and_replication_reduction_type=reduction_type)

    def accumulationReductionType(self, reduction_type: ReductionType) -> Self:
        """Set the type of the reduction: its name in older releases."""
        warn_deprecated(
            "Options.Training.accumulationReductionType",
            "Options.Training.accumulationAndReplicationReductionType",
        )
        return self.accumulationAndReplicationReductionType(reduction_type)

    def setMeanAccumulationAndReplicationReductionStrategy(
        self, mean_reduction_strategy: MeanReductionStrategy
    ) -> Self:
        """Record when a mean of gradients is divided."""
        return self.set(
            meanAccumulationAndReplicationReductionStrategy=mean_reduction_strategy
        )

    def setAutomaticLossScaling(self, enabled: bool) -> Self:
        """Set whether the loss of float16 models is scaled by the size of gradients."""
        self._popart_options.set("automaticLossScalingSettings.enabled", enabled)
        return self

    def setConvolutionDithering(self, enabled: bool) -> Self:
        """Record whether convolutions start on different tiles."""
        self._popart_options.setForConvolutions("enableConvDithering", enabled)
        return self
