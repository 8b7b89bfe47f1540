"""The nodes of the tree of additions: aligned spans of powers of two."""

from collections.abc import Iterator, Sequence


def nodes_of(begin: int, end: int) -> Iterator[range]:
    """Yield the largest nodes in replicas [begin, end), one after the other."""
    while begin < end:
        size = 1
        while begin % (2 * size) == 0 and begin + 2 * size <= end:
            size *= 2
        yield range(begin, begin + size)
        begin += size


def nodes_of_parts(parts: Sequence[int]) -> Iterator[range]:
    """Yield the nodes of all parts of a job, which have so many replicas each."""
    begin = 0
    for replicas in parts:
        yield from nodes_of(begin, begin + replicas)
        begin += replicas
