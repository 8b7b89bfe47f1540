"""What instances exchange for one training model: weights once, gradients each step."""

from collections.abc import Sequence

import torch

from popdist.engine.group import Group
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
        """Meet the other instances, if the options say that there are some.

        Raises:
            Error: The options name other instances than the job has, or the
                instances' options do not fit together.
        """
        self.first_replica = 0
        self.replicas = settings.replicas
        self._group: Group | None = None
        # One row for each node of the tree, or for each local replica.
        self._one_node = True
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
        group = STATE.group(_PURPOSE, STATE.job.members)
        counts = self._check_alike(group, settings)
        self.first_replica = sum(counts[: place.rank])
        self.replicas = sum(counts)
        # Then each instance's replicas are a node, and all nodes are of one level.
        self._one_node = len(set(counts)) == 1 and counts[0].bit_count() == 1
        self._group = group if self._one_node else group.view(counts)

    @property
    def separate_rows(self) -> bool:
        """Whether the gradients of each local replica are exchanged by themselves."""
        return not self._one_node

    def broadcast(self, weights: Sequence[torch.Tensor]) -> None:
        """Overwrite the weights with those of instance 0."""
        if self._group is not None and weights:
            with torch.no_grad():
                tensors.broadcast(self._group, list(weights), 0)

    def reduced(
        self,
        gradients: GradientSum,
        parameters: Sequence[torch.Tensor],
        names: Sequence[str],
    ) -> Row:
        """Return the sum of the gradients of all replicas of the job."""
        if self._group is None:
            return gradients.total()
        rows = [gradients.total()] if self._one_node else gradients.rows()
        used = self._agree(self._group, rows, names)
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
            tensors.all_reduce(self._group, columns)
        return rows[0]

    def _agree(
        self, group: Group, rows: Sequence[Row], names: Sequence[str]
    ) -> list[bool]:
        """Return which parameters have gradients on some instance.

        What they are in the first step they are in all that follow.
        """
        mine = [
            any(g is not None for g in column) for column in zip(*rows, strict=True)
        ]
        if self._used is None:
            held = torch.tensor(mine, dtype=torch.uint8)
            # A row for each local replica, where the group has them.
            copies = [held] * group.num_local_replicas
            if mine:
                target = torch.empty_like(held)
                outs = [target] * group.num_local_replicas
                tensors.all_reduce(group, [copies], "max", out=[outs])
                held = target
            self._used = [bool(one) for one in held.tolist()]
        for name, used, now in zip(names, self._used, mine, strict=True):
            if now and not used:
                raise Error(
                    f"The parameter {name} has a gradient, but had none on any "
                    "instance in the first training step, and other instances do not "
                    "expect one. Let the model's loss depend on the same parameters "
                    "in every step."
                )
        return self._used

    def _check_alike(self, group: Group, settings: RunSettings) -> list[int]:
        """Return the number of replicas of each instance.

        Raises:
            Error: Instances have other settings than this one.
        """
        mine = torch.tensor(
            [
                settings.replicas,
                settings.device_iterations,
                settings.gradient_accumulation,
                settings.mean,
            ],
            dtype=torch.int64,
        )
        whole = torch.empty((group.size, len(mine)), dtype=torch.int64)
        tensors.all_gather(group, mine, whole)
        rows: list[list[int]] = whole.tolist()
        for name, column in (
            ("deviceIterations", 1),
            ("Training.gradientAccumulation", 2),
            ("Training.accumulationAndReplicationReductionType", 3),
        ):
            values = [row[column] for row in rows]
            if len(set(values)) > 1:
                raise Error(
                    f"poptorch.Options.{name} must be the same on all instances, but "
                    f"is {values}, from instance 0 to {group.size - 1}."
                )
        return [row[0] for row in rows]
