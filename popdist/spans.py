"""The program's own spans in the timeline of a job."""

from contextlib import ContextDecorator
from typing import Self

from popdist.session import STATE


class trace(ContextDecorator):
    """A span of the program, for the timeline of `poprun --trace`.

    A context manager and a decorator: the span lasts as long as the block, or as each
    call of the function. Without --trace it does nothing.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._open: list[int] = []

    def _recreate_cm(self) -> Self:
        # A decorated function may call itself, and run in several threads at once.
        return type(self)(self._name)

    def __enter__(self) -> None:
        """Begin the span."""
        recorder = STATE.recorder
        if recorder is not None:
            self._open.append(recorder.begin_span(self._name))

    def __exit__(self, *_: object) -> None:
        """End the span."""
        recorder = STATE.recorder
        if recorder is not None and self._open:
            recorder.end_span(self._open.pop())
