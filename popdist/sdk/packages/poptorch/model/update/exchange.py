"""What instances exchange for one training model: weights once, gradients each step."""

from collections.abc import Sequence

import torch

from popdist.errors import MismatchError
from popdist.replicated.members import Members
from popdist.session import STATE
from popdist.torch import tensors

from ...errors import Error
from ..run_settings import RunSettings
from .gradients import GradientSum, Row

# The group of all executors' calls: beside those of Horovod, in an order of its own.
_PURPOSE = "poptorch"


class Exchange:
    """The other instances that train the same model.

    All of them make its calls in the same order. With one instance it does nothing.
    """

    def __init__(self, settings: RunSettings) -> None:
        """Join the group of the other instances, if the options name some.

        Raises:
            Error: The options name other instances than the job has, or the
                instances' options do not fit together.
        """
        self.members = Members(replicas=settings.replicas)
        # Which parameters have gradients, once that is agreed upon.
        self._used: list[bool] | None = None
        if settings.instances == 1:
            return
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
            self.members = Members.meet(_PURPOSE, settings.replicas, alike)
        except MismatchError as error:
            raise Error(str(error)) from error

    def broadcast(self, weights: Sequence[torch.Tensor]) -> None:
        """Overwrite the weights with those of instance 0."""
        group = self.members.rows
        if group is not None and weights:
            with torch.no_grad():
                tensors.broadcast(group, list(weights), 0)

    def reduced(
        self,
        gradients: GradientSum,
        parameters: Sequence[torch.Tensor],
        names: Sequence[str],
    ) -> Row:
        """Return the sum of the gradients of all replicas of the job."""
        group = self.members.rows
        if group is None:
            return gradients.total()
        separate = self.members.separate_rows
        rows = gradients.rows() if separate else [gradients.total()]
        used = self._agree(rows, names)
        for row in rows:
            for index, gradient in enumerate(row):
                if used[index] and gradient is None:
                    row[index] = gradients.zeros(parameters[index])
        columns = [
            [gradient for gradient in column if gradient is not None]
            for column in zip(*rows, strict=True)
            if column[0] is not None
        ]
        if columns:
            tensors.all_reduce(group, columns)
        return rows[0]

    def _agree(self, rows: Sequence[Row], names: Sequence[str]) -> list[bool]:
        """Return which parameters have gradients on some instance.

        What they are in the first step they are in all that follow.
        """
        own = [any(g is not None for g in column) for column in zip(*rows, strict=True)]
        if self._used is None:
            self._used = self.members.any_of(own)
        for name, used, now in zip(names, self._used, own, strict=True):
            if now and not used:
                raise Error(
                    f"The parameter {name} has a gradient, but had none on any "
                    "instance in the first training step, and other instances do not "
                    "expect one. Let the model's loss depend on the same parameters "
                    "in every step."
                )
        return self._used
