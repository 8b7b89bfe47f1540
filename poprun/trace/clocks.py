"""The clocks of other hosts, and times by them on poprun's clock. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from poprun.host.host_link import ClockReading


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """A host's CLOCK_MONOTONIC on poprun's clock, at two times.

    Between two hosts such clocks drift apart by some microseconds in a second.
    """

    # A time on the host's clock, and the difference from it to poprun's clock.
    first_ns: int = 0
    first_offset_ns: int = 0
    last_ns: int = 0
    last_offset_ns: int = 0

    def on_poprun(self, ns: int) -> int:
        """Return a time of the host as poprun's clock has it."""
        span = self.last_ns - self.first_ns
        drift = self.last_offset_ns - self.first_offset_ns
        if span <= 0:
            return ns + self.first_offset_ns
        return ns + self.first_offset_ns + drift * (ns - self.first_ns) // span


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
    return Clock(
        first_ns=first.there_ns,
        first_offset_ns=first.offset_ns,
        last_ns=last.there_ns,
        last_offset_ns=last.offset_ns,
    )
