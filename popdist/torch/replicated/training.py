"""The training of one model by all instances: gradients, exchange and update."""

from collections.abc import Callable, Sequence

import torch

from popdist.replicated.members import Members
from popdist.replicated.settings import ReplicatedSettings
from popdist.torch import tensors
from popdist.torch.replicated.gradients import GradientSum, Row


class ReplicatedTraining:
    """Sums the gradients of all replicas of the job for each update of the weights.

    All instances that train the model make its calls in the same order. With one
    instance nothing is exchanged.
    """

    def __init__(
        self,
        settings: ReplicatedSettings,
        members: Members,
        parameters: Sequence[torch.Tensor],
        names: Sequence[str],
        update: Callable[[Row], object],
    ) -> None:
        """Prepare to train some parameters.

        Args:
            settings: The replicas and micro-batches.
            members: The instances that train the same model.
            parameters: The trained tensors, which are leaves of autograd.
            names: The names of the parameters in errors.
            update: Updates the parameters once, by the sums of their gradients.
        """
        self._members, self._update = members, update
        self.parameters, self._names = parameters, names
        self._gradients = GradientSum(
            parameters,
            members.first_replica,
            settings.replicas,
            settings.gradient_accumulation,
            separate=members.separate_rows,
        )
        # For each parameter, whether it has gradients. None before the first step.
        self._used: list[bool] | None = None

    def begin(self) -> None:
        """Forget all gradients."""
        self._gradients.begin()

    def backward(self, loss: torch.Tensor, scale: float = 1.0) -> None:
        """Run the backward pass of a micro-batch, from its loss times a scale."""
        # Not a gradient given to backward(): its checks take longer and import sympy.
        if loss.numel() != 1:
            loss = loss.sum()
        if scale != 1:
            loss = loss * scale
        loss.backward()  # type: ignore[no-untyped-call]
        if self._gradients.has_short:
            self._gradients.after_micro_batch()

    def after_replica(self, replica: int) -> None:
        """Add the gradients from the backward passes of a local replica."""
        self._gradients.after_replica(replica)

    @torch.no_grad()
    def update_weights(self) -> None:
        """Reduce the gradients over all replicas of all instances, and update once.

        Raises:
            members.mismatch: A parameter has a gradient that no instance had in the
                first step.
        """
        self._update(self._reduced())

    def _reduced(self) -> Row:
        """Return the sum of the gradients of all replicas of the job."""
        group = self._members.rows
        if group is None:
            return self._gradients.total()
        separate = self._members.separate_rows
        rows = self._gradients.rows() if separate else [self._gradients.total()]
        used = self._agree(rows)
        for row in rows:
            for index, gradient in enumerate(row):
                if used[index] and gradient is None:
                    row[index] = self._gradients.zeros(self.parameters[index])
        columns = [
            [gradient for gradient in column if gradient is not None]
            for column in zip(*rows, strict=True)
            if column[0] is not None
        ]
        if columns:
            tensors.all_reduce(group, columns)
        return rows[0]

    def _agree(self, rows: Sequence[Row]) -> list[bool]:
        """Return for each parameter whether it has gradients on some instance.

        The answer of the first step holds for all further steps.
        """
        own = [any(g is not None for g in column) for column in zip(*rows, strict=True)]
        if self._used is None:
            self._used = self._members.any_of(own)
        for name, used, now in zip(self._names, self._used, own, strict=True):
            if now and not used:
                raise self._members.mismatch(
                    f"The parameter {name} has a gradient, but had none on any "
                    "instance in the first training step, and other instances do not "
                    "expect one. Let the model's loss depend on the same parameters "
                    "in every step."
                )
        return self._used


def broadcast(members: Members, weights: Sequence[torch.Tensor], root: int = 0) -> None:
    """Overwrite the weights with one instance's weights. All instances call this."""
    if members.instances is not None and weights:
        with torch.no_grad():
            tensors.broadcast(members.instances, list(weights), root)
