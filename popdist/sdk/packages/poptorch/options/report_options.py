"""The part of Options for logs, progress and measurements."""

from typing import Self

from ..errors import require
from .option_values import OptionValues
from .popart_options import _PopartOptions


class _ReportOptions(OptionValues):
    """Logs, progress and measurements.

    Recorded options have no effect on a CPU.
    """

    _popart: _PopartOptions
    _relax_optimizer_checks: bool
    _show_compilation_progress_bar: bool
    _module_namescope_enabled: bool
    _source_location_excludes: list[str]

    def showCompilationProgressBar(self, show: bool = True) -> Self:
        """Set whether a bar is shown while a model is compiled."""
        self._show_compilation_progress_bar = show
        return self

    def relaxOptimizerAttributesChecks(self, relax: bool = True) -> Self:
        """Set whether attributes that optimizers get later are logged at debug only."""
        self._relax_optimizer_checks = relax
        return self

    def logDir(self, log_dir: str) -> Self:
        """Record the folder of log files."""
        return self.set(log_dir=log_dir)

    def maxRepeatLogs(self, max_lines: int | None) -> Self:
        """Record how often a line is logged at most; None: as often as it comes."""
        self.checkIsFrozen()
        require(
            max_lines is None or isinstance(max_lines, int),
            f"max_lines is {max_lines!r}, but must be an int or None.",
        )
        self._values["max_repeat_logs"] = max_lines
        return self

    def modelName(self, name: str) -> Self:
        """Record the name of the model in reports."""
        return self.createOrSet(model_name=name)

    def logCycleCount(self, log_cycle_count: bool) -> Self:
        """Set whether cycleCount() has what a call has taken."""
        self._popart.set("instrumentWithHardwareCycleCounter", log_cycle_count)
        return self

    def enableProfiling(self, profile_dir: str | None = None) -> Self:
        """Record a folder for the profile of the device."""
        engine = self._popart.options.get("engineOptions", {})
        self._popart.setEngineOptions(
            {
                **engine,
                "debug.allowOutOfMemory": "true",
                "autoReport.directory": profile_dir or ".",
                "autoReport.all": "true",
            }
        )
        return self

    def disableModuleNamescope(self) -> Self:
        """Record that operations are not named after their modules."""
        self._module_namescope_enabled = False
        return self

    def sourceLocationExcludes(self, excludes: list[str]) -> Self:
        """Record which files are not named as the place of an operation."""
        self._source_location_excludes = list(excludes)
        return self

    def appendToLocationExcludes(self, *excludes: str) -> Self:
        """Record more files that are not named as the place of an operation."""
        self._source_location_excludes = [*self._source_location_excludes, *excludes]
        return self
