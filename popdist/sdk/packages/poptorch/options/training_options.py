"""Options.Training."""

from typing import Self

from .._logging import warn_deprecated
from ..enums import MeanReductionStrategy, ReductionType
from .option_values import OptionValues
from .popart_options import _PopartOptions


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
        if reduction_type not in (ReductionType.Sum, ReductionType.Mean) or not (
            isinstance(reduction_type, ReductionType)
        ):
            raise ValueError(
                "accumulationAndReplicationReductionType must be set to "
                "poptorch.ReductionType.Mean or poptorch.ReductionType.Sum"
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
