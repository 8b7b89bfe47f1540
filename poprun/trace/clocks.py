"""The clocks of other hosts, and times by them on poprun's clock. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from poprun.host.host_link import ClockReading

# poprun's own clock, at any time.
_EQUAL = ClockReading(asked_ns=0, answered_ns=0, there_ns=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """A host's CLOCK_MONOTONIC, read at two times; by default poprun's own.

    Between two hosts such clocks drift apart by some microseconds in a second.
    """

    first: ClockReading = _EQUAL
    last: ClockReading = _EQUAL

    def on_poprun(self, ns: int) -> int:
        """Return a time of the host as poprun's clock has it."""
        first, last = self.first, self.last
        span = last.there_ns - first.there_ns
        drift = last.offset_ns - first.offset_ns
        if span <= 0:
            return ns + first.offset_ns
        return ns + first.offset_ns + drift * (ns - first.there_ns) // span


def clock_of(readings: Sequence[ClockReading]) -> Clock:
    """Return a host's clock by the quickest answers at the start and at the end."""
    if not readings:
        return Clock()
    middle = (readings[0].asked_ns + readings[-1].asked_ns) // 2
    early = [one for one in readings if one.asked_ns <= middle]
    late = [one for one in readings if one.asked_ns > middle] or early
    first, last = (
        min(some, key=lambda one: one.uncertainty_ns) for some in (early, late)
    )
    return Clock(first=first, last=last)
