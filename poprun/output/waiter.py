"""Waits for descriptors on behalf of their owners, and lets these serve them."""

import select
import time
from collections.abc import Callable, Iterable, Iterator
from math import ceil
from typing import NamedTuple, Protocol

READ, WRITE = select.POLLIN, select.POLLOUT
# poll takes milliseconds as an int, which a longer wait would exceed.
MAX_WAIT_S = 86400.0


class Interest(NamedTuple):
    """A descriptor that the loop waits for, on behalf of its owner.

    It is no frozen dataclass: each turn of the loop makes one for each stream of each
    instance, and a frozen dataclass takes much longer.
    """

    descriptor: int
    # READ, WRITE or both.
    events: int
    # Is called when one of them has come; it may find nothing to do.
    call: Callable[[], object]


class LoopPart(Protocol):
    """A part of a program that a loop serves."""

    def interests(self, now: float) -> Iterator[Interest]:
        """Yield the descriptors to wait for; they are served in this order."""

    def deadline(self, now: float) -> float:
        """Return when `tick` is due even if nothing happens."""

    def tick(self, now: float) -> None:
        """Do what is due by now."""


def serve(interests: Iterable[Interest], due: float) -> None:
    """Wait until `due` at most, and call the owners of ready descriptors in order.

    A descriptor may have several interests, for other events each.
    """
    interests = list(interests)
    events: dict[int, int] = {}
    for interest in interests:
        events[interest.descriptor] = (
            events.get(interest.descriptor, 0) | interest.events
        )
    # Not epoll, which refuses regular files: stdin and stdout may be some.
    poll = select.poll()
    for descriptor, wanted in events.items():
        poll.register(descriptor, wanted)
    wait = min(max(0.0, due - time.monotonic()), MAX_WAIT_S)
    # Rounded up, or the loop would turn until then.
    ready = dict(poll.poll(ceil(wait * 1000)))
    for interest in interests:
        # An error, or a peer that is gone, is for all.
        if ready.get(interest.descriptor, 0) & (interest.events | ~(READ | WRITE)):
            interest.call()
