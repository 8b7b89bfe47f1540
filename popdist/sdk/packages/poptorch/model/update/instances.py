"""The instances that train one model, as the options name them."""

from popdist.replicated.members import Members
from popdist.session import STATE

from ...errors import Error
from ..run_settings import RunSettings

# The group of all executors' calls: beside Horovod's calls, in a separate order.
_PURPOSE = "poptorch"


def meet(settings: RunSettings) -> Members:
    """Return the instances that train the same model. All of them call this.

    Raises:
        Error: The options name other instances than the job has, or the instances'
            options do not fit together.
    """
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
    return Members.meet(_PURPOSE, settings.replicas, alike, Error)
