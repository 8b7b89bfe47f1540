"""How long the last call of an executor took."""

from ..errors import Error
from ..options import Options
from .forward.timing import Latency, Timing


class Measurements:
    """The part of an executor that tells how long its last call took."""

    _options: Options

    def _timing(self) -> Timing:
        """Return when the parts of the last call began and ended.

        Raises:
            Error: The model has not run.
        """
        raise NotImplementedError

    def getPerfCounters(self) -> dict[str, list[list[float]]]:
        """Return when each part of the last call ended, for each device iteration."""
        timing = self._timing()
        return {
            "input": [timing.input],
            "input_complete": [timing.input_complete],
            "output": [timing.output],
            "output_complete": [timing.output_complete],
        }

    def getLatency(self) -> Latency:
        """Return the minimum, maximum and average time of a device iteration."""
        timing = self._timing()
        return timing.latency(timing.input, timing.output_complete)

    def getComputeLatency(self) -> Latency:
        """Return how long the model itself took, as getLatency()."""
        timing = self._timing()
        return timing.latency(timing.input_complete, timing.output)

    def getHostIpuLatency(self) -> Latency:
        """Return how long preparing an iteration took, as getLatency()."""
        timing = self._timing()
        return timing.latency(timing.input, timing.input_complete)

    def getIpuHostLatency(self) -> Latency:
        """Return how long finishing an iteration took, as getLatency()."""
        timing = self._timing()
        return timing.latency(timing.output, timing.output_complete)

    def cycleCount(self) -> int:
        """Return the nanoseconds that the last call took, one cycle for each.

        Raises:
            Error: The option logCycleCount is off, or the model has not run.
        """
        counted = self._options._popart.options.get(
            "instrumentWithHardwareCycleCounter", False
        )
        if not counted:
            raise Error(
                "Cycle count logging is disabled. Please set option logCycleCount to "
                "True to enable."
            )
        timing = self._timing()
        return round((timing.output_complete[-1] - timing.input[0]) * 1e9)
