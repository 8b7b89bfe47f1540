"""What instances exchange for one training model: weights once, gradients each step."""

from collections.abc import Sequence

import torch

from popdist.errors import MismatchError
from popdist.replicated.members import Members
from popdist.session import STATE
from popdist.torch.replicated.exchange import GradientExchange
from popdist.torch.replicated.gradients import GradientSum, Row

from ...errors import Error
from ..run_settings import RunSettings

# The group of all executors' calls: beside those of Horovod, in an order of its own.
_PURPOSE = "poptorch"


class Exchange(GradientExchange):
    """The other instances that train the same model, as the options name them."""

    def __init__(self, settings: RunSettings) -> None:
        """Join the group of the other instances, if the options name some.

        Raises:
            Error: The options name other instances than the job has, or the
                instances' options do not fit together.
        """
        super().__init__(_meet(settings))

    def reduced(
        self,
        gradients: GradientSum,
        parameters: Sequence[torch.Tensor],
        names: Sequence[str],
    ) -> Row:
        """Return the sum of the gradients of all replicas of the job.

        Raises:
            Error: A parameter has a gradient that no instance had in the first step.
        """
        try:
            return super().reduced(gradients, parameters, names)
        except MismatchError as error:
            raise Error(str(error)) from error


def _meet(settings: RunSettings) -> Members:
    """Return the instances that the options name, which have to be those of the job."""
    if settings.instances == 1:
        return Members(replicas=settings.replicas)
    place = STATE.job.place
    if (settings.instance, settings.instances) != (place.rank, place.size):
        raise Error(
            f"The options say that this is process {settings.instance} of "
            f"{settings.instances}, but it is instance {place.rank} of "
            f"{place.size} of its job. Start as many instances with poprun, use "
            "popdist.poptorch.Options, or call "
            "poptorch.Options.Distributed.disable() to train alone."
        )
    options = "poptorch.Options."
    accumulation = f"{options}Training.gradientAccumulation"
    reduction = f"{options}Training.accumulationAndReplicationReductionType"
    alike = {
        f"{options}deviceIterations": settings.device_iterations,
        accumulation: settings.gradient_accumulation,
        reduction: settings.mean,
    }
    try:
        return Members.meet(_PURPOSE, settings.replicas, alike)
    except MismatchError as error:
        raise Error(str(error)) from error
