"""When the parts of the device iterations of the last call began and ended."""

from dataclasses import dataclass, field
from time import perf_counter

Latency = tuple[float, float, float]


@dataclass
class Timing:
    """Times in seconds, one of each kind for each device iteration.

    An iteration lasts from `input` to `output_complete`. Its micro-batches take turns,
    but the times are those of an iteration that divides all inputs first, until
    `input_complete`, and keeps all outputs last, from `output` on.
    """

    input: list[float] = field(default_factory=list)
    input_complete: list[float] = field(default_factory=list)
    output: list[float] = field(default_factory=list)
    output_complete: list[float] = field(default_factory=list)
    # How long the current iteration has divided inputs and kept outputs.
    dividing: float = 0.0
    keeping: float = 0.0

    def begin_iteration(self) -> None:
        """Note that an iteration begins."""
        self.dividing = self.keeping = 0.0
        self.input.append(perf_counter())

    def end_iteration(self) -> None:
        """Note that the iteration ends."""
        end = perf_counter()
        self.input_complete.append(self.input[-1] + self.dividing)
        self.output.append(end - self.keeping)
        self.output_complete.append(end)

    def latency(self, begin: list[float], end: list[float]) -> Latency:
        """Return the minimum, maximum and average time between two kinds."""
        times = [after - before for before, after in zip(begin, end, strict=False)]
        return min(times), max(times), sum(times) / len(times)
