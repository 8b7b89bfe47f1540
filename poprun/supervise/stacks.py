"""Asks the processes of a job to show their Python stacks. Knows no processes."""

from collections import deque
from collections.abc import Callable, Iterable
from math import inf

# How long a shim may take to answer, and a process to begin to write.
ANSWER_S = 2.0
# A process has shown its stacks when stderr has been quiet for so long.
QUIET_S = 0.2


class Stacks:
    """One round through the instances of a job, and then through their children.

    One after the other, so that the stacks of different processes do not mix.

    Args:
        ask: Asks the shim of an instance to let a process show its stacks; with 0, to
            name those that can.
        stderr: Returns the end of what an instance has written to its stderr.
        say: Writes a line of poprun's to stderr.
    """

    def __init__(
        self,
        ask: Callable[[int, int], None],
        stderr: Callable[[int], bytes],
        say: Callable[[str], None],
    ) -> None:
        self._ask, self._stderr, self._say = ask, stderr, say
        # Instance and process; 0 stands for all processes that can show stacks.
        self._left: deque[tuple[int, int]] = deque()
        self._current: tuple[int, int] | None = None
        self._seen = b""
        self._until = inf

    def start(self, ranks: Iterable[int], now: float) -> None:
        self._left = deque((rank, 0) for rank in ranks)
        self._next(now)

    def answer(self, rank: int, pids: list[int], now: float) -> None:
        """Take in which processes of an instance can show stacks, its program first."""
        if self._current != (rank, 0):
            return
        self._left.extendleft((rank, pid) for pid in pids[:1])
        self._left.extend((rank, pid) for pid in pids[1:])
        self._next(now)

    def deadline(self) -> float:
        return self._until

    def tick(self, now: float) -> None:
        """Go on when a process has shown its stacks, or does not."""
        if self._current is None:
            return
        rank, pid = self._current
        if pid and (written := self._stderr(rank)) != self._seen:
            self._seen = written
            self._until = now + QUIET_S
        elif now >= self._until:
            self._next(now)

    def stop(self) -> None:
        """Ask no other process."""
        if self._left:
            self._say(
                "There was not enough time to get the Python stacks of all processes."
            )
        self._left.clear()
        self._current, self._until = None, inf

    @property
    def over(self) -> bool:
        return self._current is None

    def _next(self, now: float) -> None:
        if not self._left:
            self._current, self._until = None, inf
            return
        rank, pid = self._current = self._left.popleft()
        self._until = now + ANSWER_S
        if pid:
            self._seen = self._stderr(rank)
            self._say(f"Python stacks of instance {rank} (PID {pid}):")
        self._ask(rank, pid)
