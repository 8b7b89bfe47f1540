"""The gradients of local replicas, added up in the order of the engine."""

from collections.abc import Sequence

import torch

from popdist.replicated.sums import TreeSum

# The gradients of one node of the tree; None where a parameter took no part.
Row = list[torch.Tensor | None]

# Gradients of these are added up in float32, and weights of these updated in it.
SHORT_DTYPES = (torch.float16, torch.bfloat16)


class GradientSum(TreeSum[Row]):
    """Adds the gradients that the backward passes of local replicas leave."""

    def __init__(
        self,
        parameters: Sequence[torch.Tensor],
        first_replica: int,
        replicas: int,
        micro_batches: int,
        *,
        separate: bool = False,
    ) -> None:
        """Make a sum over some replicas.

        Args:
            first_replica: The number in the job of local replica 0.
            replicas: The number of local replicas.
            micro_batches: How many micro-batches each replica runs per sum.
            separate: Whether to keep the gradients of each replica by themselves.
        """
        super().__init__(_added, separate=separate)
        self._parameters = parameters
        self._first = first_replica
        self._replicas = replicas
        self._in_place = micro_batches == 1 and not separate
        self._short = [parameter.dtype in SHORT_DTYPES for parameter in parameters]
        self.has_short = any(self._short)
        self._long: Row = [None] * len(parameters)

    def begin(self) -> None:
        """Forget all gradients."""
        self.clear()
        for parameter in self._parameters:
            parameter.grad = None

    def after_micro_batch(self) -> None:
        """Add the gradients of 16 bits that a backward pass has left in float32."""
        for index, parameter in enumerate(self._parameters):
            if not self._short[index] or parameter.grad is None:
                continue
            earlier = self._long[index]
            if earlier is None:
                self._long[index] = parameter.grad.float()
            else:
                earlier.add_(parameter.grad)
            parameter.grad = None

    def after_replica(self, replica: int) -> None:
        """Add the gradients from the backward passes of a local replica."""
        number = self._first + replica
        even_of_pair = number % 2 == 0 and replica + 1 < self._replicas
        # Autograd itself adds the gradients of the second of a pair to these.
        if self._in_place and not self.has_short:
            if even_of_pair:
                return
            if number % 2 and replica:
                self.push(number - 1, self._take(), level=1)
                return
        self.push(number, self._take())

    def zeros(self, parameter: torch.Tensor) -> torch.Tensor:
        """Return the gradient of a parameter that took no part."""
        dtype = torch.float32 if parameter.dtype in SHORT_DTYPES else parameter.dtype
        return torch.zeros(parameter.shape, dtype=dtype)

    def _take(self) -> Row:
        """Return the gradients that backward passes have left, and forget them."""
        row: Row = []
        for index, parameter in enumerate(self._parameters):
            if self._short[index]:
                row.append(self._long[index])
                self._long[index] = None
            else:
                grad = parameter.grad
                row.append(grad.to_dense() if grad is not None else None)
                parameter.grad = None
        return row


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
