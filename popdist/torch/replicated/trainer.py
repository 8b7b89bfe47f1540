"""The training of one model by all instances: gradients, exchange and update."""

from collections.abc import Callable, Mapping, Sequence

import torch

from popdist.engine.group import Group
from popdist.replicated.members import Members
from popdist.replicated.settings import ReplicatedSettings
from popdist.replicated.sums import TreeSum
from popdist.torch import tensors

# The gradients of one node of the tree; None where a parameter took no part.
Row = list[torch.Tensor | None]

# Gradients of these are added up in float32, and weights of these updated in it.
SHORT_DTYPES = (torch.float16, torch.bfloat16)


class Trainer:
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
        factors: Mapping[str, int],
        *,
        averaged: bool = False,
    ) -> None:
        """Prepare to train some parameters.

        Args:
            settings: The replicas and micro-batches.
            members: The instances that train the same model.
            parameters: The trained tensors, which are leaves of autograd.
            names: The names of the parameters.
            update: Updates the parameters once, by the sums of their gradients.
            factors: Further factors of means of some parameters, by their names.
            averaged: Whether sums of gradients are averaged over the instances.
        """
        self.members, self._update = members, update
        self._factors = factors if settings.mean else {}
        self.parameters, self.names = parameters, names
        self._replicas, separate = settings.replicas, members.separate_rows
        self._sum = TreeSum(_added, separate=separate)
        self._short = {i for i, p in enumerate(parameters) if p.dtype in SHORT_DTYPES}
        # The gradients of 16 bits of one replica, added up, by index.
        self._long: dict[int, torch.Tensor] = {}
        one_batch = settings.gradient_accumulation == 1
        self._adds_pairs = one_batch and not separate and not self._short
        # For each parameter, whether it has gradients. None before the first step.
        self._used: list[bool] | None = None
        # What sums of gradients are to be divided by.
        self.divisor = members.replicas / settings.replicas if averaged else 1.0
        if settings.mean:
            self.divisor = settings.gradient_accumulation * members.replicas

    def begin(self) -> None:
        """Forget all gradients."""
        self._sum.clear()
        self._long.clear()
        for parameter in self.parameters:
            parameter.grad = None

    def backward(self, loss: torch.Tensor, scale: float = 1.0) -> None:
        """Run the backward pass of a micro-batch, from its loss times a scale."""
        # Not a gradient given to backward(): its checks take longer and import sympy.
        if loss.numel() != 1:
            loss = loss.sum()
        if scale != 1:
            loss = loss * scale
        loss.backward()  # type: ignore[no-untyped-call]
        for index in self._short:
            gradient, self.parameters[index].grad = self.parameters[index].grad, None
            if gradient is not None and index in self._long:
                self._long[index].add_(gradient)
            elif gradient is not None:
                self._long[index] = gradient.float()

    def after_replica(self, replica: int) -> None:
        """Add the gradients from the backward passes of a local replica."""
        number, level = self.members.first_replica + replica, 0
        # Autograd itself adds the gradients of the second of a pair to these.
        if self._adds_pairs:
            if number % 2 == 0 and replica + 1 < self._replicas:
                return
            if number % 2 and replica:
                number, level = number - 1, 1
        row: Row = []
        for index, parameter in enumerate(self.parameters):
            gradient = self._long.pop(index, parameter.grad)
            row.append(None if gradient is None else gradient.to_dense())
            parameter.grad = None
        self._sum.push(number, row, level)

    @torch.no_grad()
    def update_weights(self) -> None:
        """Reduce the gradients over all replicas of all instances, and update once.

        Raises:
            members.mismatch: A parameter has a gradient that no instance had in the
                first step.
        """
        separate, group = self.members.separate_rows, self.members.rows
        rows = self._sum.rows() if separate else [self._sum.total()]
        if group is not None:
            self._reduce(group, rows)
        for gradient, name in zip(rows[0], self.names, strict=True):
            if gradient is not None and name in self._factors:
                gradient.mul_(self._factors[name])
        self._update(rows[0])

    def _reduce(self, group: Group, rows: Sequence[Row]) -> None:
        """Replace the gradients by the sums over all replicas of the job."""
        used = self._agree(rows)
        for index, parameter in enumerate(self.parameters):
            dtype = torch.float32 if index in self._short else parameter.dtype
            for row in rows:
                if used[index] and row[index] is None:
                    row[index] = torch.zeros(parameter.shape, dtype=dtype)
        columns = [
            [gradient for gradient in column if gradient is not None]
            for column in zip(*rows, strict=True)
            if column[0] is not None
        ]
        if columns:
            tensors.all_reduce(group, columns)

    def _agree(self, rows: Sequence[Row]) -> list[bool]:
        """Return for each parameter whether it has gradients on some instance.

        The answer of the first step holds for all further steps.
        """
        own = [any(g is not None for g in column) for column in zip(*rows, strict=True)]
        if self._used is None:
            self._used = self.members.any_of(own)
        for name, used, now in zip(self.names, self._used, own, strict=True):
            if now and not used:
                raise self.members.mismatch(
                    f"The parameter {name} has a gradient, but had none on any "
                    "instance in the first training step, and other instances do not "
                    "expect one. Let the model's loss depend on the same parameters "
                    "in every step."
                )
        return self._used


def _added(left: Row, right: Row) -> Row:
    """Return the sum of two rows, in the memory of the left one."""
    both = [
        (a, b)
        for a, b in zip(left, right, strict=True)
        if a is not None and b is not None
    ]
    if both:
        torch._foreach_add_([a for a, _ in both], [b for _, b in both])
    return [b if a is None else a for a, b in zip(left, right, strict=True)]


def broadcast(members: Members, weights: Sequence[torch.Tensor], root: int = 0) -> None:
    """Overwrite the weights with one instance's weights. All instances call this."""
    if members.instances is not None and weights:
        with torch.no_grad():
            tensors.broadcast(members.instances, list(weights), root)
