"""How long the last call of an executor took."""

from time import perf_counter

from ..errors import Error
from ..options import Options

Latency = tuple[float, float, float]


class Timing:
    """When the parts of each device iteration of a call began and ended, in seconds.

    An iteration lasts from `input` to `output_complete`. Its micro-batches take turns,
    but the times are those of an iteration that divides all inputs first, until
    `input_complete`, and keeps all outputs last, from `output` on.
    """

    def __init__(self) -> None:
        names = ("input", "input_complete", "output", "output_complete")
        self.times: dict[str, list[float]] = {name: [] for name in names}
        # How long the current iteration has divided inputs and kept outputs.
        self.dividing = self.keeping = 0.0

    def begin_iteration(self) -> None:
        """Note that an iteration begins."""
        self.dividing = self.keeping = 0.0
        self.times["input"].append(perf_counter())

    def end_iteration(self) -> None:
        """Note that the iteration ends."""
        end = perf_counter()
        self.times["input_complete"].append(self.times["input"][-1] + self.dividing)
        self.times["output"].append(end - self.keeping)
        self.times["output_complete"].append(end)


class Measurements:
    """The part of an executor that tells how long its last call took."""

    _options: Options
    # None until a call has ended.
    _timing: Timing | None

    def getPerfCounters(self) -> dict[str, list[list[float]]]:
        """Return when each part of the last call ended, for each device iteration."""
        return {name: [times] for name, times in self._times().items()}

    def getLatency(self) -> Latency:
        """Return the minimum, maximum and average time of a device iteration."""
        return self._latency("input", "output_complete")

    def getComputeLatency(self) -> Latency:
        """Return how long the model itself took, as getLatency()."""
        return self._latency("input_complete", "output")

    def getHostIpuLatency(self) -> Latency:
        """Return how long preparing an iteration took, as getLatency()."""
        return self._latency("input", "input_complete")

    def getIpuHostLatency(self) -> Latency:
        """Return how long finishing an iteration took, as getLatency()."""
        return self._latency("output", "output_complete")

    def cycleCount(self) -> int:
        """Return the nanoseconds that the last call took, one cycle for each.

        Raises:
            Error: The option logCycleCount is off, or the model has not run.
        """
        if not self._options._Popart.options.get("instrumentWithHardwareCycleCounter"):
            raise Error(
                "Cycle count logging is disabled. Please set option logCycleCount to "
                "True to enable."
            )
        times = self._times()
        return round((times["output_complete"][-1] - times["input"][0]) * 1e9)

    def _times(self) -> dict[str, list[float]]:
        if self._timing is None:
            raise Error(
                "The model has not run yet. Please run the model at least once before "
                "asking how long it took."
            )
        return self._timing.times

    def _latency(self, begin: str, end: str) -> Latency:
        pairs = zip(self._times()[begin], self._times()[end], strict=True)
        times = [after - before for before, after in pairs]
        return min(times), max(times), sum(times) / len(times)
