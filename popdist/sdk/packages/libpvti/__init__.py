"""PopVision's library of trace points, which become spans of popdist.trace.

`poprun --trace` records them. Values of graphs and heatmaps are not recorded.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ParamSpec, TypeVar

import popdist

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")
Instrumented = TypeVar("Instrumented")


class TraceChannel:
    """A channel of trace points: its name comes before theirs."""

    def __init__(self, name: str) -> None:
        self.name = name


# The function that programs make one with.
createTraceChannel = TraceChannel


class _OpenSpans(threading.local):
    """The spans that begin() has begun in this thread, by channel and label."""

    def __init__(self) -> None:
        self.spans: dict[tuple[str, str], list[Tracepoint]] = defaultdict(list)


_open = _OpenSpans()


class Tracepoint(popdist.trace):
    """A span that lasts as long as the block."""

    def __init__(self, channel: TraceChannel, label: str) -> None:
        super().__init__(f"{channel.name}: {label}")

    @staticmethod
    def begin(channel: TraceChannel, label: str) -> None:
        """Begin a span."""
        span = Tracepoint(channel, label)
        _open.spans[channel.name, label].append(span)
        span.__enter__()

    @staticmethod
    def end(channel: TraceChannel, label: str) -> None:
        """End the last open span of that label in this thread.

        Raises:
            ValueError: There is none.
        """
        spans = _open.spans[channel.name, label]
        if not spans:
            raise ValueError(
                f"No trace point {label!r} of the channel {channel.name!r} is open in "
                "this thread. Call Tracepoint.begin() before."
            )
        spans.pop().__exit__()

    @staticmethod
    def event(channel: TraceChannel, label: str) -> None:
        """Record a span that ends at once."""
        with Tracepoint(channel, label):
            pass


def instrument_fn(
    channel: TraceChannel,
) -> Callable[[Callable[Parameters, Returned]], Callable[Parameters, Returned]]:
    """Return a decorator that makes each call of a function a span."""
    return lambda function: popdist.trace(f"{channel.name}: {function.__qualname__}")(
        function
    )


def instrument(
    obj: Instrumented, methods: Iterable[str], channel: TraceChannel
) -> Instrumented:
    """Make each call of these methods of an object a span; return the object."""
    for name in methods:
        setattr(obj, name, instrument_fn(channel)(getattr(obj, name)))
    return obj


class Series:
    """A series of a graph. Its values are not recorded."""

    def add(self, value: float) -> None:
        """Check that the value is a number."""
        float(value)


class Graph:
    """A graph of values over time, which is not recorded."""

    def __init__(self, name: str, unit: str = "") -> None:
        self.name, self.unit = name, unit

    def addSeries(self, name: str) -> Series:
        """Return a new series."""
        return Series()


class HeatmapDouble:
    """A histogram over time, which is not recorded."""

    def __init__(self, name: str, edges: Sequence[float], unit: str = "") -> None:
        self.name, self.edges, self.unit = name, list(edges), unit

    # Any: numbers, or arrays of numpy.
    def add(self, values: Iterable[Any]) -> None:
        """Check that the values are numbers."""
        for value in values:
            float(value)
