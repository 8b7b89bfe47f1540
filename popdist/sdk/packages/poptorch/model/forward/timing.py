"""When the parts of the device iterations of the last call began and ended."""

from dataclasses import dataclass, field
from time import perf_counter

Latency = tuple[float, float, float]


@dataclass
class Timing:
    """Times in seconds, one of each kind for each device iteration.

    Inputs are divided between `input` and `input_complete`, the model runs until
    `output`, and its outputs are kept at `output_complete`.
    """

    input: list[float] = field(default_factory=list)
    input_complete: list[float] = field(default_factory=list)
    output: list[float] = field(default_factory=list)
    output_complete: list[float] = field(default_factory=list)

    def mark(self, kind: list[float]) -> None:
        """Note that a part has come to its end."""
        kind.append(perf_counter())

    def latency(self, begin: list[float], end: list[float]) -> Latency:
        """Return the minimum, maximum and average time between two kinds."""
        times = [after - before for before, after in zip(begin, end, strict=False)]
        return min(times), max(times), sum(times) / len(times)
