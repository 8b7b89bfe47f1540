"""Sums of the rows of local replicas, in the order in which the engine adds.

The engine adds the rows of replicas in a binary tree over their numbers in the job: its
nodes are aligned spans of powers of two. To add local gradients in that same order
makes the sum the same to the bit in every split into instances. It costs as many
additions as to add them one after another.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

# The gradients of all parameters, from one replica or from one node of the tree.
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class _Node(Generic[R]):
    """The sum of the rows of replicas first to first + 2**level - 1."""

    first: int
    level: int
    row: R


class TreeSum(Generic[R]):
    """Adds the rows of local replicas, which come in the order of their numbers."""

    def __init__(self, add: Callable[[R, R], R], *, separate: bool = False) -> None:
        """Make a sum without rows.

        Args:
            add: Returns the sum of two rows, the one of lower numbers first. It may
                use their memory.
            separate: Whether to keep the row of each replica by itself.
        """
        self._add = add
        self._separate = separate
        self._nodes: list[_Node[R]] = []

    def clear(self) -> None:
        """Forget all rows."""
        self._nodes = []

    def push(self, replica: int, row: R, level: int = 0) -> None:
        """Add the row of a replica, by its number in the job.

        Args:
            level: The row is already a sum of 2**level replicas, beginning with
                `replica`.
        """
        node = _Node(replica, level, row)
        while self._nodes and not self._separate:
            left = self._nodes[-1]
            if left.level != node.level or left.first % (2 << node.level):
                break
            self._nodes.pop()
            node = _Node(left.first, node.level + 1, self._add(left.row, node.row))
        self._nodes.append(node)

    def rows(self) -> list[R]:
        """Return the sums: of nodes of the tree, or of replicas if those are kept."""
        return [node.row for node in self._nodes]

    def total(self) -> R:
        """Return the sum over the local replicas, folded from the right."""
        rows = self.rows()
        total = rows.pop()
        while rows:
            total = self._add(rows.pop(), total)
        return total


def is_one_node(counts: Sequence[int]) -> bool:
    """Return whether the replicas of each instance are one node, all of one level.

    Args:
        counts: The number of replicas of each instance.
    """
    return len(set(counts)) == 1 and counts[0].bit_count() == 1
