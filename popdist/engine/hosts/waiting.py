"""Messages that a member waits for, and how it gives its core to others meanwhile."""

import os
from time import monotonic
from typing import Any, NamedTuple

from popdist.engine.hosts.arrivals import Arrivals

# A wait yields its core this long, and sleeps after that, so long at most.
_YIELD_SECONDS = 0.002
_SLEEP = 0.001
# A yield that lasts longer is late.
_LATE_SECONDS = 0.0005


class Transfer(NamedTuple):
    """A message under way to or from a member."""

    request: Any
    peer: int


class CallOver(Exception):
    """The group has come to its end in the middle of a call."""


class Pauses:
    """How a wait gives its core to others: it yields, and then sleeps.

    A yield that returns late shows that others had the core for a time slice: waits
    sleep at once after that, as those of the core do, and try again later and later.
    """

    def __init__(self, arrivals: Arrivals) -> None:
        self._arrivals = arrivals
        self._yield_until = self._sleep_until = 0.0
        # For how long yields were last not tried.
        self._late = 0.0

    def begin(self, now: float) -> None:
        """Begin a wait at this time."""
        self._yield_until = now + _YIELD_SECONDS

    def end(self) -> None:
        """End a wait: what it was for has come."""
        self._arrivals.succeeded()

    def pause(self, now: float) -> float:
        """Yield or sleep, and return the time after that."""
        if now > self._yield_until or now < self._sleep_until:
            self._arrivals.sleep(_SLEEP)
            return monotonic()
        os.sched_yield()
        after = monotonic()
        if after - now > _LATE_SECONDS:
            self._late = min(max(2 * self._late, after - now), 1.0)
            self._sleep_until = after + self._late
        return after
