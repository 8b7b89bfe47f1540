"""The instances' exchanges for one training model: weights once, then gradients."""

from collections.abc import Sequence

import torch

from popdist.errors import MismatchError
from popdist.replicated.members import Members
from popdist.torch import tensors
from popdist.torch.replicated.gradients import GradientSum, Row


class GradientExchange:
    """The other instances that train the same model.

    All of them make its calls in the same order. With one instance it does nothing.
    """

    def __init__(self, members: Members) -> None:
        self.members = members
        # For each parameter, whether it has gradients. None before the first step.
        self._used: list[bool] | None = None

    def broadcast(self, weights: Sequence[torch.Tensor], root: int = 0) -> None:
        """Overwrite the weights with one instance's weights."""
        group = self.members.instances
        if group is not None and weights:
            with torch.no_grad():
                tensors.broadcast(group, list(weights), root)

    def reduced(
        self,
        gradients: GradientSum,
        parameters: Sequence[torch.Tensor],
        names: Sequence[str],
    ) -> Row:
        """Return the sum of the gradients of all replicas of the job.

        Raises:
            MismatchError: A parameter has a gradient that no instance had in the first
                step.
        """
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
        """Return for each parameter whether it has gradients on some instance.

        The answer of the first step holds for all further steps.
        """
        own = [any(g is not None for g in column) for column in zip(*rows, strict=True)]
        if self._used is None:
            self._used = self.members.any_of(own)
        for name, used, now in zip(names, self._used, own, strict=True):
            if now and not used:
                raise MismatchError(
                    f"The parameter {name} has a gradient, but had none on any "
                    "instance in the first training step, and other instances do not "
                    "expect one. Let the model's loss depend on the same parameters "
                    "in every step."
                )
        return self._used
