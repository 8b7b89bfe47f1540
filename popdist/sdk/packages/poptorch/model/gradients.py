"""The gradients of local replicas, added up in the order of the engine.

The engine adds what replicas have in a binary tree over their numbers in the job: its
nodes are aligned spans of powers of two. To add local gradients in that same order
makes the sum the same to the bit in every split into instances. It costs as many
additions as to add them one after another.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch

# The gradients of one node of the tree; None where a parameter took no part.
Row = list[torch.Tensor | None]

# From how many elements on a gradient is added by a hook.
_LARGE = 1 << 14

# Gradients of these are added up in float32.
_SHORT = (torch.float16, torch.bfloat16)


@dataclass(slots=True)
class _Node:
    """The sum of the gradients of the replicas first to first + 2**level - 1."""

    first: int
    level: int
    row: Row


class GradientSum:
    """Adds the gradients that the backward passes of local replicas leave.

    Large ones are added by hooks as soon as autograd has them: then they are still in
    the processor's cache, and their memory can be used again. Small ones are added all
    at once after a replica's backward passes. Those of 16 bits are added in float32.
    """

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
        self._parameters = parameters
        self._first = first_replica
        self._replicas = replicas
        self._separate = separate
        self._short = [parameter.dtype in _SHORT for parameter in parameters]
        self._large = [
            parameter.numel() >= _LARGE and not short
            for parameter, short in zip(parameters, self._short, strict=True)
        ]
        # Autograd itself adds the small gradients of two replicas of one micro-batch.
        self.has_short = any(self._short)
        self._pairs = micro_batches == 1 and not separate and not self.has_short
        self._nodes: list[_Node] = []
        # What the current replica has left so far, of large and of 16-bit gradients.
        self._row: Row = []
        # The rows that its large gradients are added to, the last summand first.
        self._chain: list[Row] = []
        # Memory for large gradients: all of it, and what is not in use.
        self._memory: list[list[torch.Tensor]] = [[] for _ in parameters]
        self._free: list[list[torch.Tensor]] = []
        self._hooks_add = False

    def begin(self) -> None:
        """Forget all gradients."""
        self._nodes = []
        self._row = [None] * len(self._parameters)
        self._free = [list(held) for held in self._memory]
        for parameter in self._parameters:
            parameter.grad = None

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Have large gradients added by hooks in the block."""
        handles = [
            parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                partial(self._add, index)
            )
            for index, parameter in enumerate(self._parameters)
            if self._large[index]
        ]
        self._hooks_add = False
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def before_last_micro_batch(self, replica: int) -> None:
        """Find out what the gradients of a local replica are added to."""
        self._hooks_add = True
        self._chain, level = [], 0
        if self._separate:
            return
        if self._is_second_of_pair(replica):
            self._chain, level = [self._row], 1
        for node in reversed(self._nodes):
            if node.level != level or node.first % (2 << level):
                break
            self._chain.append(node.row)
            level += 1

    def after_micro_batch(self) -> None:
        """Add the gradients of 16 bits that a backward pass has left in float32."""
        for index, parameter in enumerate(self._parameters):
            if not self._short[index] or parameter.grad is None:
                continue
            held = self._row[index]
            if held is None:
                self._row[index] = parameter.grad.float()
            else:
                held.add_(parameter.grad)
            parameter.grad = None

    def after_replica(self, replica: int) -> None:
        """Add what the backward passes of a local replica have left."""
        self._hooks_add = False
        number = self._first + replica
        if self._is_second_of_pair(replica):
            self._push(_Node(number - 1, 1, self._take()))
        elif not (self._pairs and number % 2 == 0 and replica + 1 < self._replicas):
            self._push(_Node(number, 0, self._take()))

    def rows(self) -> list[Row]:
        """Return the sums: of nodes of the tree, or of replicas if those are kept."""
        return [node.row for node in self._nodes]

    def zeros(self, parameter: torch.Tensor) -> torch.Tensor:
        """Return the gradient of a parameter that took no part."""
        dtype = torch.float32 if parameter.dtype in _SHORT else parameter.dtype
        return torch.zeros(parameter.shape, dtype=dtype)

    def total(self) -> Row:
        """Return the sum over the local replicas, folded from the right."""
        rows = self.rows()
        total = rows.pop()
        while rows:
            total = _added(rows.pop(), total)
        return total

    def _is_second_of_pair(self, replica: int) -> bool:
        """Return whether the replica before this one has left gradients to add to."""
        return self._pairs and replica > 0 and (self._first + replica) % 2 == 1

    def _add(self, index: int, parameter: torch.Tensor) -> None:
        """Add a large gradient to the sums of the replicas before, if that is time."""
        if not self._hooks_add or parameter.grad is None:
            return
        gradient = parameter.grad
        for row in self._chain:
            left, row[index] = row[index], None
            if left is None:
                continue
            left.add_(gradient)
            if gradient is not parameter.grad:
                self._free[index].append(gradient)
            gradient = left
        if gradient is parameter.grad:
            gradient = self._copied(index, gradient)
        (self._chain[-1] if self._chain else self._row)[index] = gradient
        parameter.grad = None

    def _copied(self, index: int, gradient: torch.Tensor) -> torch.Tensor:
        """Return a copy in memory that is used in every step.

        The memory of gradients themselves would go back to the system, and come from
        there again, in every step.
        """
        if not self._free[index]:
            new = torch.empty_like(gradient, layout=torch.strided)
            self._memory[index].append(new)
            self._free[index].append(new)
        return self._free[index].pop().copy_(gradient)

    def _push(self, node: _Node) -> None:
        while self._nodes and not self._separate:
            left = self._nodes[-1]
            if left.level != node.level or left.first % (2 << node.level):
                break
            self._nodes.pop()
            node = _Node(left.first, node.level + 1, _added(left.row, node.row))
        self._nodes.append(node)

    def _take(self) -> Row:
        """Return the gradients that backward passes have left, and forget them."""
        row, self._row = self._row, [None] * len(self._parameters)
        for index, parameter in enumerate(self._parameters):
            if parameter.grad is not None:
                row[index] = parameter.grad.to_dense()
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
