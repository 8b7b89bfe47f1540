"""Channels of PopVision's System Analyser: popdist.trace records trace points."""

from typing import TypeVar

import popdist

Instrumented = TypeVar("Instrumented")


class Channel:
    """A channel of trace points, which are spans of `poprun --trace`."""

    def __init__(self, name: str) -> None:
        self.name = name

    def instrument(self, obj: Instrumented, *methods: str) -> Instrumented:
        """Make each call of these methods of an object a span; return the object.

        Raises:
            AttributeError: It has no such method.
        """
        for method in methods:
            setattr(obj, method, self.tracepoint(method)(getattr(obj, method)))
        return obj

    def tracepoint(self, name: str) -> popdist.trace:
        """Return a span for a block, with the name of the channel before its own."""
        return popdist.trace(f"{self.name}.{name}")
