"""When to ask whether an instance has failed and only cannot end. Knows no processes.

A Python program that dies of an exception calls MPI_Finalize on its way out. That waits
for the other instances, which wait for it, and nobody ends. What can be seen from
outside is a traceback, and then nothing more; its shim can then tell whether the
program has left Python behind.
"""

FOREVER = float("inf")
# So long an instance says nothing more before it is asked, and then ever longer.
PATIENCE_S = 0.5
LONGEST_PATIENCE_S = 60.0

TRACEBACK = b"Traceback (most recent call last):"


class Doubts:
    """Which instances of one job sound as if they had died."""

    def __init__(self) -> None:
        # By rank: when to ask, and how long it has been quiet by then.
        self._due: dict[int, tuple[float, float]] = {}
        self._ended: set[int] = set()

    def heard(self, rank: int, stderr: bytes, now: float) -> None:
        """Take in that an instance has said something.

        Args:
            stderr: The end of all that it has said.
        """
        self._due.pop(rank, None)
        if TRACEBACK in stderr and rank not in self._ended:
            self._due[rank] = now + PATIENCE_S, PATIENCE_S

    def end(self, rank: int) -> None:
        """Take in that an instance has ended, or that there is no doubt any more."""
        self._due.pop(rank, None)
        self._ended.add(rank)

    def deadline(self) -> float:
        return min((at for at, _ in self._due.values()), default=FOREVER)

    def to_ask(self, now: float) -> list[int]:
        """Return the instances to ask now."""
        ranks = [rank for rank, (at, _) in self._due.items() if at <= now]
        for rank in ranks:
            patience = min(2 * self._due[rank][1], LONGEST_PATIENCE_S)
            self._due[rank] = now + patience, patience
        return ranks
