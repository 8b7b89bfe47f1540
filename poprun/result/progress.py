"""One line that says how far a running job is: events -> text. Pure.

It listens to the events of the job and knows no terminal; the router shows the line
where that disturbs nothing.
"""

from poprun.job.events import (
    Event,
    Exited,
    Interrupted,
    Refused,
    ShimLost,
    Started,
)
from poprun.stdio.terminal import clock
from poprun.words import counted

# A job that is over sooner needs no line.
FIRST_AFTER_S = 0.5


class Progress:
    """How many instances of one job have started and ended.

    Args:
        began: When the job did, on the clock that `text` is asked with.
    """

    def __init__(self, instances: int, began: float) -> None:
        self._instances = instances
        self._began = began
        self._started: set[int] = set()
        self._ended: set[int] = set()
        self._is_stopping = False

    def listen(self, event: Event) -> None:
        match event:
            case Started(rank):
                self._started.add(rank)
            case Exited(rank) | Refused(rank) | ShimLost(rank):
                self._ended.add(rank)
            case Interrupted():
                self._is_stopping = True

    def text(self, now: float) -> str:
        """Return the line, or nothing if it is too early for one."""
        elapsed = now - self._began
        if elapsed < FIRST_AFTER_S:
            return ""
        return f"poprun: {self._phase()} ({clock(int(elapsed))})"

    def _phase(self) -> str:
        number = len(self._started - self._ended)
        running = f"{counted(number, 'instance')} running"
        ended = f", {len(self._ended)} ended" if self._ended else ""
        every = counted(self._instances, "instance")
        if len(self._ended) == self._instances:
            return f"all {every} ended"
        if self._is_stopping:
            return f"stopping, {running}{ended}"
        if len(self._started | self._ended) < self._instances:
            return f"starting, {number} of {every} running{ended}"
        return running + ended
