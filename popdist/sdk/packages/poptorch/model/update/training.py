"""The training of a model: its optimizer, and the scale of its loss."""

from collections.abc import Mapping

import torch

from popdist.replicated.members import Members
from popdist.torch.replicated.gradients import Row
from popdist.torch.replicated.training import ReplicatedTraining

from ..run_settings import RunSettings
from .anchors import Anchors
from .loss_scaler import LossScaler
from .weight_update import WeightUpdate


class Training:
    """Trains a model: sums the gradients of its replicas, and updates its weights."""

    def __init__(
        self,
        settings: RunSettings,
        members: Members,
        update: WeightUpdate,
        anchors: Anchors,
        half: bool,
        factors: Mapping[str, int],
    ) -> None:
        """Prepare to train.

        Args:
            settings: The replicas and micro-batches.
            members: The instances that train the same model.
            update: Updates the weights.
            anchors: Keeps gradients and weights for the program.
            half: Whether the model computes in float16.
            factors: Further factors of gradients, by the names of parameters.
        """
        self._settings, self._members = settings, members
        self._anchors, self.update = anchors, update
        self._half = half
        scaling = settings.loss_scaling if half else None
        self._scaler = LossScaler(scaling) if scaling is not None else None
        # How many micro-batches all replicas of the job run for one update.
        self._micro_batches = settings.gradient_accumulation * members.replicas
        self._divisor = self._micro_batches if settings.mean else 1
        self._factors = factors
        self.gradients = self._sum_of_gradients()

    def _sum_of_gradients(self) -> ReplicatedTraining:
        parameters, names = self.update.parameters, self.update.names
        return ReplicatedTraining(
            self._settings, self._members, parameters, names, self._update_weights
        )

    def set_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Update the weights by this optimizer from now on.

        Raises:
            Error: It changes an attribute that is marked as constant.
        """
        before = [(id(p), p.dtype) for p in self.update.parameters]
        self.update.set_optimizer(optimizer)
        if [(id(p), p.dtype) for p in self.update.parameters] != before:
            self.gradients = self._sum_of_gradients()

    def backward(self, loss: torch.Tensor) -> None:
        """Run the backward pass of a micro-batch."""
        # Gradients of float16 would vanish if the loss were divided; others are
        # cheaper to divide so.
        scale = self.update.loss_scaling if self._half else 1 / self._divisor
        self.gradients.backward(loss, scale)

    def _update_weights(self, total: Row) -> None:
        """Update the weights by the gradients of all replicas of the job."""
        update, scale = self.update, self.update.loss_scaling
        for name, gradient in zip(update.names, total, strict=True):
            if gradient is not None and name in self._factors:
                gradient.mul_(self._factors[name])
        factor = 1.0
        if self._scaler is not None:
            factor = self._scaler.next_factor(
                update.parameters, total, self._micro_batches, scale
            )
        update.step(total, 1 / (self._divisor * scale) if self._half else 1.0)
        self._anchors.keep(update.parameters, update.names, total, scale)
        if factor != 1:
            update.loss_factor *= factor
