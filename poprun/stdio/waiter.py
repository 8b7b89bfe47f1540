"""Waits for descriptors on behalf of their owners, and lets these serve them."""

import selectors
import time
from collections.abc import Callable, Iterable

from poprun.record import Record

# What fits in the milliseconds that poll takes.
MAX_WAIT_S = 86400.0


class Interest(Record):
    """A descriptor that the loop waits for, on behalf of its owner."""

    descriptor: int
    # selectors.EVENT_READ, EVENT_WRITE or both.
    events: int
    # Is called with the events that came.
    call: Callable[[int], object]


class Waiter:
    """Waits for one of many descriptors, which differ from call to call."""

    def __init__(self) -> None:
        # Not epoll, which refuses regular files: stdin and stdout may be some.
        self._selector = selectors.PollSelector()
        self._registered: dict[int, int] = {}

    def serve(self, interests: Iterable[Interest], due: float) -> None:
        """Wait until `due` at most, and call the owners of what is ready, in order."""
        wanted = {i.descriptor: i for i in interests}
        for descriptor in self._registered.keys() - wanted.keys():
            self._selector.unregister(descriptor)
            del self._registered[descriptor]
        for descriptor, interest in wanted.items():
            known = self._registered.get(descriptor)
            if known is None:
                self._selector.register(descriptor, interest.events)
            elif known != interest.events:
                self._selector.modify(descriptor, interest.events)
            self._registered[descriptor] = interest.events
        wait = min(max(0.0, due - time.monotonic()), MAX_WAIT_S)
        ready = {key.fd: events for key, events in self._selector.select(wait)}
        for descriptor, interest in wanted.items():
            if descriptor in ready:
                interest.call(ready[descriptor])

    def close(self) -> None:
        self._selector.close()


def calling(
    function: Callable[..., object], *arguments: object
) -> Callable[[int], object]:
    """Return a call for an Interest, whatever the events that came."""
    return lambda _: function(*arguments)
