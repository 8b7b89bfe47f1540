"""Channels of PopVision's System Analyser, which is not there to read them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

Instrumented = TypeVar("Instrumented")


class Channel:
    """A channel of trace points. None is recorded, as without Poplar's libpvti."""

    def __init__(self, name: str) -> None:
        self.name = name

    def instrument(self, obj: Instrumented, *methods: str) -> Instrumented:
        """Check that the object has these methods; return it.

        Raises:
            AttributeError: It has not.
        """
        for method in methods:
            getattr(obj, method)
        return obj

    @contextmanager
    def tracepoint(self, name: str) -> Iterator[None]:
        """Run a block that PopVision would show by this name."""
        yield
